# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a service reacted to what was changed, and how long to wait after a change in vain.

Rise, release and the trial of a squeeze change a demand and ask this. All take a change of the
smoothed deviation by three tenths: a smaller part of the suffering is not worth what it costs.
``SqueezeTrial`` lets a squeeze go that brings nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
import math

from controller.core.indicators.windows import STRETCH
from controller.core.model import IndicatorName

__all__ = (
    "NEAR",
    "PATIENCE_S",
    "SMOOTH_S",
    "SUFFERS",
    "UNMET",
    "Backoff",
    "LowPass",
    "SqueezeTrial",
    "has_fallen",
    "has_risen",
)

# Time constant of the low-pass in front: about one window, and less than what a reader notices.
SMOOTH_S = 1.0
# From this deviation on a service suffers beyond noise; as far below 0 it is clear of its sweet
# point.
SUFFERS = 0.25
_PART = 0.3
# A demand at most this far above another one is as good as that one.
NEAR = 0.05

# What a change does is seen after a window and so long.
PATIENCE_S = 3.0
# A deviation above this is no noise around the sweet point: at the stop it is out of reach, after a
# release this is a relapse.
UNMET = 0.3

# From this demand on a squeeze is judged.
_HARD = 0.9
_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 480.0


class LowPass:
    """First-order low-pass. The first input is the first output."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def update(self, value: float, dt_s: float, time_constant_s: float) -> float:
        """Take an input, *dt_s* after the last one, and return the filtered value."""
        if self.value is None or time_constant_s <= 0:
            self.value = value
        else:
            self.value += (1.0 - math.exp(-dt_s / time_constant_s)) * (value - self.value)
        return self.value


def has_risen(deviation: float, before: float) -> bool:
    """Return whether a service suffers more than *before*, both as smoothed deviations.

    A smaller rise is noise: that of a window of a second is half as large. A fall ends where the
    loops decide by themselves, so it needs no such bound.
    """
    return deviation > max(before + 2 * SUFFERS, before / (1 - _PART))


def has_fallen(deviation: float, before: float) -> bool:
    """Return whether a service suffers less than *before*, both as smoothed deviations."""
    return deviation < (1 - _PART) * before


class Backoff:
    """A pause that doubles from *first* to *longest*, in the caller's unit of time.

    ``pause`` is the last one, 0 at the begin.
    """

    __slots__ = ("_first", "_longest", "pause")

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self.pause = 0.0

    def next(self) -> float:
        """Return the next pause."""
        self.pause = min(self._longest, max(self._first, 2 * self.pause))
        return self.pause

    def reset(self) -> None:
        """Let the next pause be the first again."""
        self.pause = 0.0


class _State(Enum):
    OPEN = "open"
    WATCHED = "watched"
    PAUSED = "paused"


@dataclass(slots=True)
class SqueezeTrial:
    """Whether a squeeze for one service on one channel brings anything, found out by a trial.

    The evidence in front of a loop says that best-effort work uses a resource, not that the service
    would suffer less without it. So a squeeze to the stop is a trial: where most of the suffering
    stays, the demand goes back to the level from which more brought nothing. If the service then
    suffers more, the squeeze did help after all and is put back. Otherwise it is paused, and tried
    again ever less often. With ``unmet``, a squeeze that helps and still does not bring the service
    to its sweet point is a trial too: the objective is out of reach, and what the squeeze brings
    may not be worth all of the work.

    Only measured time counts. A trial waits while the indicator that was the worst one has no
    value. Without one for longer than a window may be stretched to, it ends without a result: the
    values before and after have no time in common.

    ``most`` is the largest demand that the service may ask for now, ``None`` without a limit.
    ``again`` is the demand of a squeeze that is put back in this tick, else ``None``. ``report`` is
    the sentence of a tick in which the trial changed, else empty.
    """

    unmet: bool = False
    most: float | None = None
    again: float | None = None
    report: str = ""
    _deviation: LowPass = field(default_factory=LowPass)
    # The indicator that the last deviation is of, and when it was measured.
    _worst: IndicatorName | None = None
    _measured_s: float = -math.inf
    _state: _State = _State.OPEN
    # The demand at which the service was last well, and the most it suffered since then.
    _good: float = 0.0
    _before: float = 0.0
    # The deviation under the squeeze that was let go, and its demand.
    _squeezed: float = 0.0
    _left: float = 0.0
    # For how long the squeeze is at its stop, or let go.
    _since_s: float = 0.0
    _judge_after_s: float = 0.0
    _now_s: float = 0.0
    _paused_s: float = 0.0
    _backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S))

    def update(
        self,
        deviations: Mapping[IndicatorName, float],
        asks: bool,
        applied: float,
        window_s: float,
        now_s: float,
        dt_s: float,
    ) -> None:
        """Take the demand *applied* and the *deviations*, without limits, that were measured.

        For each tick, *dt_s* long, in which the service asks for a squeeze or ``most`` is set, also
        without values. *asks*: the evidence lets it ask. *window_s* is the longest window of its
        indicators.
        """
        self.report = ""
        self.again = None
        self._now_s = now_s
        gap_s = now_s - self._measured_s
        if gap_s > STRETCH * window_s:
            self._lose()
        if not deviations or (self._worst is not None and self._worst not in deviations):
            return
        self._measured_s = now_s
        self._worst = max(deviations, key=lambda name: deviations[name])
        smooth = self._deviation.update(deviations[self._worst], gap_s, SMOOTH_S)
        if smooth <= 0.0 or not asks:
            # A demand that is not for this service says nothing about what it needs.
            self._recover(applied if asks else min(applied, self._good))
        elif self._state is _State.OPEN:
            self._judge(smooth, applied, window_s, dt_s)
        elif self._state is _State.WATCHED:
            self._watch(smooth, applied, window_s, dt_s)
        elif self._now_s - self._paused_s >= self._backoff.pause or has_risen(smooth, self._before):
            self._open(smooth)

    @property
    def lacks_effect(self) -> bool:
        """Whether a squeeze is not paused, and most of the suffering before it is still there."""
        smooth = self._deviation.value
        return self.most is None and smooth is not None and not has_fallen(smooth, self._before)

    def give_up(self) -> None:
        """Let go of a squeeze under which the service waits for the host."""
        self._pause(self._deviation.value or 0.0)
        self.most = 0.0
        self.report = (
            "waits for CPUs that are idle or stand still, which no squeeze shortens: tried again "
            f"in {self._backoff.pause:.0f} s"
        )

    def _lose(self) -> None:
        """Forget what was measured; a pause, which rests on a trial that ended, goes on."""
        self._deviation = LowPass()
        self._worst = None
        if self._state is _State.WATCHED:
            self.report = "was not measured for too long: the trial of the squeeze has no result"
        if self._state is not _State.PAUSED:
            self._open(0.0)

    def _pause(self, smooth: float) -> None:
        self._state, self._before = _State.PAUSED, smooth
        self._next_pause()

    def _recover(self, applied: float) -> None:
        self._open(0.0)
        self._good = applied
        if self._now_s - self._paused_s >= 2 * self._backoff.pause:
            self._backoff.reset()

    def _open(self, smooth: float) -> None:
        self._state, self.most = _State.OPEN, None
        self._before, self._since_s = smooth, 0.0

    def _judge(self, smooth: float, applied: float, window_s: float, dt_s: float) -> None:
        self._before = max(self._before, smooth)
        self._good = min(self._good, applied)
        self._since_s = self._since_s + dt_s if applied >= _HARD else 0.0
        if self._since_s < PATIENCE_S + SMOOTH_S + window_s or self._now_s < self._judge_after_s:
            return
        helps = has_fallen(smooth, self._before)
        if (helps and not (self.unmet and smooth > UNMET)) or self._good >= _HARD:
            self._judge_after_s = self._now_s + self._next_pause()  # useful for now
            return
        self._state, self.most = _State.WATCHED, self._good
        self._squeezed, self._since_s, self._left = smooth, 0.0, applied
        self.report = (
            f"suffers at full squeeze (deviation {smooth:.2f}) {'too' if helps else 'as before'} "
            f"({self._before:.2f}): the squeeze is let go"
        )

    def _watch(self, smooth: float, applied: float, window_s: float, dt_s: float) -> None:
        # Another service, or the hold-off time of a knob, may keep a squeeze up: nothing is shown.
        is_kept = applied > self._good + NEAR
        self._since_s = 0.0 if is_kept else self._since_s + dt_s
        if has_risen(smooth, self._squeezed):
            self._open(smooth)
            if is_kept:
                self.report = f"suffers more (deviation {smooth:.2f}): the squeeze is not let go"
                return
            self.again = self._left
            self._judge_after_s = self._now_s + self._next_pause()
            self.report = (
                f"suffers more without the squeeze (deviation {smooth:.2f}): it helps, and is put "
                "back"
            )
        elif self._since_s >= PATIENCE_S + window_s:
            self._pause(smooth)
            self.report = (
                f"suffers as much without a squeeze (deviation {smooth:.2f}): not caused by "
                f"best-effort, tried again in {self._backoff.pause:.0f} s"
            )

    def _next_pause(self) -> float:
        self._paused_s = self._now_s
        return self._backoff.next()
