# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a squeeze for a service is justified: by evidence before it, and by a trial of it.

Without evidence that best-effort work causes a service's deviation nothing is squeezed.
``SqueezeTrial`` lets a squeeze go that brings nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
import math

from controller.core.decision import ChannelState
from controller.core.indicators.windows import STRETCH
from controller.core.limiters import (
    NEAR,
    PATIENCE_S,
    SMOOTH_S,
    UNMET,
    Backoff,
    LowPass,
    has_fallen,
    has_risen,
)
from controller.core.model import IndicatorName

__all__ = (
    "Evidence",
    "EvidenceGate",
    "SqueezeTrial",
    "host_explains",
    "steal_explains",
    "throttled_explains",
)

# A smaller part of the time than this explains nothing: of all CPU time, because a little steal on
# many CPUs without the service is long as well; of a service's time under its own quota, because
# at 1 % best-effort work still costs it far more, and at 10 % a tenth of its requests meets a quota
# that is used up.
_LEAST_RATIO = 0.05
# From this demand on a squeeze is judged.
_HARD = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about the causes of a service's wait.

    ``be_share`` is best-effort's part of the inflicted wait, an average over seconds (``None``:
    nothing was inflicted). ``throttled_ratio`` is the share of its time, in the indicator's window,
    in which the service was throttled by its own quota (``None``: not measurable).
    ``inflicted_cpus`` and ``host_cpus`` (the window: the wait for other work, and on CPUs that were
    idle or stood still) and ``steal_cpus`` (an average) are seconds per second, ``cpus`` is the
    number of CPUs of the machine. ``is_wait``: ``be_share`` is of what the indicators measure, and
    not of the use of a resource. ``at_own_limit``: the service reached its own limit of memory.
    """

    be_share: float | None
    throttled_ratio: float | None = None
    inflicted_cpus: float = 0.0
    steal_cpus: float | None = None
    cpus: int = 1
    host_cpus: float = 0.0
    is_wait: bool = False
    at_own_limit: bool = False


@dataclass(slots=True)
class EvidenceGate:
    """Decides in every tick whether the loops of one service may squeeze.

    ``state`` is the decision: FREE, SQUEEZE, or the cause that rules a squeeze out. ``in_vain``:
    the host explains what the service suffers during a squeeze. ``log_gain`` is the logarithm of
    the factor by which the wait would be shorter without best-effort work, as far as the last
    evidence shows; infinite without any, and on channels whose evidence is not about waits.

    Best-effort work that is squeezed inflicts less, so half of what starts a squeeze keeps it up.
    Otherwise the squeeze would end itself and start again.
    """

    state: ChannelState = ChannelState.FREE
    in_vain: bool = False
    log_gain: float = math.inf

    def update(
        self, hurting: bool, find: Callable[[], Evidence], be_share_min: float
    ) -> ChannelState:
        """Return SQUEEZE or FREE if the loops may act, else SELF, STEAL or NOT_BE.

        Loops of a service that is not *hurting* may always act: they release. *find* returns the
        evidence; it is called only where the evidence decides. *be_share_min* is the least share
        of best-effort that justifies a squeeze.
        """
        self.in_vain = False
        self.log_gain = math.inf
        if not hurting and self.state is not ChannelState.SQUEEZE:
            self.state = ChannelState.FREE
            return self.state
        evidence = find()
        share = evidence.be_share or 0.0
        if evidence.is_wait and share < 1.0:
            self.log_gain = -math.log(1.0 - share)
        needed = be_share_min / (2 if self.state is ChannelState.SQUEEZE else 1)
        if not hurting:
            if share < needed:
                self.state = ChannelState.FREE
        elif evidence.at_own_limit or throttled_explains(
            evidence, 0.5 if self.state is ChannelState.SELF else 1.0
        ):
            self.state = ChannelState.SELF
        elif steal_explains(evidence) or host_explains(evidence):
            self.in_vain = self.state is ChannelState.SQUEEZE
            self.state = ChannelState.SQUEEZE if self.in_vain else ChannelState.STEAL
        elif share < needed:
            self.state = ChannelState.NOT_BE
        else:
            self.state = ChannelState.SQUEEZE
        return self.state


def throttled_explains(evidence: Evidence, part: float = 1.0) -> bool:
    """Return whether a service's own quota explains its waits; *part* lowers the limit for it."""
    ratio = evidence.throttled_ratio
    return ratio is not None and ratio >= part * _LEAST_RATIO


def steal_explains(evidence: Evidence) -> bool:
    """Return whether steal is at least half as long as the wait, and not little of the time."""
    steal = evidence.steal_cpus
    least = max(_LEAST_RATIO * evidence.cpus, evidence.inflicted_cpus / 2)
    return steal is not None and steal >= least


def host_explains(evidence: Evidence) -> bool:
    """Return whether CPUs that stood still or woke up late explain the waits of a service.

    They do from half of its waits on: no squeeze makes an idle CPU wake up sooner.
    """
    return evidence.host_cpus > 0 and evidence.host_cpus >= evidence.inflicted_cpus


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
    # Pauses after trials, in seconds.
    _backoff: Backoff = field(default_factory=lambda: Backoff(30.0, 480.0))

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
