# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a squeeze brings anything; one that does not is let go, and tried again ever less often.

The evidence in front of a loop says that best-effort work uses a resource, not that the service
would suffer less without it. So a squeeze to the stop is a trial: where most of the suffering
stays, the demand goes back to the level from which more brought nothing. If the service then
suffers more, the squeeze did help after all and is put back. Otherwise it is paused. With
*unmet*, a squeeze that helps and still does not bring the service to its sweet point is a trial
too: the objective is out of reach, and what the squeeze brings may not be worth all of the work.

Only measured time counts. A trial waits while the indicator that was the worst one has no value.
Without one for longer than a window may be stretched to, it ends without a result: the values
before and after have no time in common.
"""

from collections.abc import Mapping
from enum import Enum
import math

from controller.core.indicators.windows import STRETCH
from controller.core.loop.pid import LowPass
from controller.core.loop.reaction import SMOOTH_S, Backoff, has_fallen, has_risen
from controller.core.model import IndicatorName

__all__ = ("SqueezeTrial",)

# From this demand on a squeeze is judged, and so long after the window shows nothing older.
_HARD = 0.9
_JUDGED_S = 4.0
# With a deviation above this at the stop the sweet point is out of reach.
_UNMET = 0.3
_WATCHED_S = 3.0
_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 480.0
# A demand at most this far above another one is as good as that one.
_NEAR = 0.05


class _State(Enum):
    OPEN = "open"
    WATCHED = "watched"
    PAUSED = "paused"


class SqueezeTrial:
    """The trial of the squeezes for one service on one channel.

    ``most`` is the largest demand that the service may ask for now, ``None`` without a limit.
    ``again`` is the demand of a squeeze that is put back in this tick, else ``None``. ``report`` is
    the sentence of a tick in which the trial changed, else empty.
    """

    __slots__ = (
        "_backoff",
        "_before",
        "_deviation",
        "_good",
        "_hard_s",
        "_judge_after_s",
        "_left",
        "_measured_s",
        "_now_s",
        "_paused_s",
        "_squeezed",
        "_state",
        "_unmet",
        "_watched_s",
        "_worst",
        "again",
        "most",
        "report",
    )

    def __init__(self, unmet: bool = False) -> None:
        self._unmet = unmet
        self._deviation = LowPass()
        # The indicator that the last deviation is of, and when it was measured.
        self._worst: IndicatorName | None = None
        self._measured_s = -math.inf
        self._state = _State.OPEN
        # The demand at which the service was last well, and the most it suffered since then.
        self._good = 0.0
        self._before = 0.0
        self._hard_s = 0.0
        # The deviation under the squeeze that was let go, and its demand.
        self._squeezed = 0.0
        self._left = 0.0
        self._judge_after_s = 0.0
        self._watched_s = 0.0
        self._now_s = 0.0
        self._paused_s = 0.0
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self.most: float | None = None
        self.again: float | None = None
        self.report = ""

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
        self._good, self._before, self._hard_s = applied, 0.0, 0.0
        self._state, self.most = _State.OPEN, None
        if self._now_s - self._paused_s >= 2 * self._backoff.pause:
            self._backoff.reset()

    def _open(self, smooth: float) -> None:
        self._state, self.most = _State.OPEN, None
        self._before, self._hard_s = smooth, 0.0

    def _judge(self, smooth: float, applied: float, window_s: float, dt_s: float) -> None:
        self._before = max(self._before, smooth)
        self._good = min(self._good, applied)
        self._hard_s = self._hard_s + dt_s if applied >= _HARD else 0.0
        if self._hard_s < _JUDGED_S + window_s or self._now_s < self._judge_after_s:
            return
        helps = has_fallen(smooth, self._before)
        if (helps and not (self._unmet and smooth > _UNMET)) or self._good >= _HARD:
            self._judge_after_s = self._now_s + self._next_pause()  # useful for now
            return
        self._state, self.most = _State.WATCHED, self._good
        self._squeezed, self._watched_s, self._left = smooth, 0.0, applied
        self.report = (
            f"suffers at full squeeze (deviation {smooth:.2f}) {'too' if helps else 'as before'} "
            f"({self._before:.2f}): the squeeze is let go"
        )

    def _watch(self, smooth: float, applied: float, window_s: float, dt_s: float) -> None:
        if applied > self._good + _NEAR:
            # Another service, or the hold-off time of a knob, keeps a squeeze up: nothing is shown.
            self._watched_s = 0.0
            if has_risen(smooth, self._squeezed):
                self._open(smooth)
                self.report = f"suffers more (deviation {smooth:.2f}): the squeeze is not let go"
            return
        self._watched_s += dt_s
        if has_risen(smooth, self._squeezed):
            self.report = (
                f"suffers more without the squeeze (deviation {smooth:.2f}): it helps, and is put "
                "back"
            )
            self._open(smooth)
            self.again = self._left
            self._judge_after_s = self._now_s + self._next_pause()
        elif self._watched_s >= _WATCHED_S + window_s:
            self._pause(smooth)
            self.report = (
                f"suffers as much without a squeeze (deviation {smooth:.2f}): not caused by "
                f"best-effort, tried again in {self._backoff.pause:.0f} s"
            )

    def _next_pause(self) -> float:
        self._paused_s = self._now_s
        return self._backoff.next()
