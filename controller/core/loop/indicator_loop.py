# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One loop and its indicator; without data it holds for a few ticks, then it is safe."""

from collections.abc import Callable
from dataclasses import dataclass
import math

from controller.core.decision import ChannelState, Indicator, IndicatorStatus
from controller.core.loop.pid import (
    LOWEST,
    LowPass,
    PidLoop,
    clip,
    dead_zone,
    deviation,
)
from controller.core.settings import IndicatorSpec

__all__ = ("HIGH", "IndicatorLoop", "loop_for")


# From this deviation on, in so many ticks, a service suffers beyond the noise that the low-pass is
# for: tolerance times its sweet point before the first squeeze, the end of the scale during one,
# when loop and noise move the indicator around its sweet point.
HIGH = 1.0
_HIGH_TICKS = 2
# A filtered deviation below this has converged to the bottom of the scale.
_CONVERGED = 0.99 * LOWEST


@dataclass(slots=True)
class IndicatorLoop:
    """One loop: the indicator, its deviation, the low-pass and the PID.

    ``deviation`` is unfiltered, ``excess`` the same without the limits of its scale, ``high_ticks``
    the number of ticks since when it is high, and ``stale`` that since when there is no data.
    ``moved``: the PID was updated in this tick. ``is_bounded``: the deviation is larger than what
    a squeeze can bring. A loop without an ``indicator`` is off: the host never had a source for it.
    """

    spec: IndicatorSpec
    pid: PidLoop
    filter: LowPass
    indicator: Indicator | None = None
    deviation: float | None = None
    excess: float | None = None
    high_ticks: int = 0
    stale: int = 0
    state: ChannelState = ChannelState.FREE
    moved: bool = False
    is_bounded: bool = False

    @property
    def converged(self) -> bool:
        """Whether the loop is off, or has converged to the lowest deviation."""
        if self.indicator is None:
            return True
        filtered = self.filter.value
        return self.moved and self.deviation == LOWEST and (filtered or 0.0) <= _CONVERGED

    @property
    def sweet_point(self) -> float | None:
        """The sweet point at the present load; ``None`` where it is not learned yet."""
        if self.indicator is None or self.indicator.sweet_point is None:
            return self.spec.sweet_point
        return self.indicator.sweet_point

    def update(
        self,
        indicator: Indicator | None,
        dt_s: float,
        hold: bool,
        high: float,
        lasts: Callable[[IndicatorSpec, float], bool],
        stale_ticks: int,
        log_gain: float = math.inf,
    ) -> None:
        """Take the indicator, *dt_s* after the last one; on *hold* the PID does not move.

        The low-pass jumps to a deviation that is *high* or more in a few ticks and *lasts*: the
        indicator of *spec* reaches the given value in each of the last ticks. In the first
        *stale_ticks* without data the loop holds, and then it is safe. *log_gain* is the logarithm
        of the factor by which a squeeze can lower the indicator: the PID takes no larger deviation.
        """
        most = log_gain / math.log(self.spec.tolerance)
        self.indicator = indicator
        self.deviation = self.excess = None
        if indicator is not None:
            self.stale = self.stale + 1 if indicator.status is IndicatorStatus.STALE else 0
            self.state = ChannelState.FREE
            if self.stale:
                is_long = self.stale > stale_ticks
                self.state = ChannelState.SAFE if is_long else ChannelState.HOLD
            if indicator.status in (IndicatorStatus.LOST, IndicatorStatus.IMPLAUSIBLE):
                self.state = ChannelState.HOLD
            if indicator.status is IndicatorStatus.IDLE:
                # The service hardly runs, so nothing can hurt it.
                self.deviation = self.excess = LOWEST
            elif indicator.status is IndicatorStatus.FRESH and indicator.value is not None:
                sweet_point = self.sweet_point
                if sweet_point is None:
                    self.deviation = self.excess = LOWEST  # not learned yet
                else:
                    self.excess = deviation(indicator.value, sweet_point, self.spec)
                    self.deviation = clip(self.excess)
        self.moved = self.deviation is not None and not hold
        self.high_ticks = self.high_ticks + 1 if (self.deviation or 0.0) >= high else 0
        if self.deviation is not None and not hold:
            if self.high_ticks:
                self.pid.begin()
            if self.high_ticks >= _HIGH_TICKS and lasts(self.spec, self.sweet_point or 0.0):
                self.filter.value = max(self.deviation, self.filter.value or 0.0)
            filtered = self.filter.update(self.deviation, dt_s, self.spec.filter_ns / 1e9)
            self.is_bounded = filtered > most
            self.pid.update(dead_zone(min(filtered, most), self.spec.dead_zone), dt_s)


def loop_for(spec: IndicatorSpec, loop: IndicatorLoop | None, applied: float) -> IndicatorLoop:
    """Return *loop* with *spec*, or a new loop."""
    if loop is None:
        return IndicatorLoop(spec, PidLoop(spec.gains, applied), LowPass())
    if loop.spec is not spec:
        loop.spec = spec
        loop.pid.retune(spec.gains)
    return loop
