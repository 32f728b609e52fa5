# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One control loop, from an indicator to a demand: deviation, low-pass, dead zone, PID.

The deviation is how far an indicator is from its sweet point, on a logarithmic scale that all
indicators share: 0 at the sweet point, 1 at *tolerance* times the sweet point, -1 as far below.
More means that the service suffers more.

The PID itself is the library simple-pid. ``PidLoop`` works around three of its properties, which no
other module depends on:

- It reads a clock unless the time step is passed.
- It computes ``setpoint - input``, so its input is the negative deviation at a set point of zero.
- Its anti-windup only clamps its own integral and cannot know of a selector, a rate limit or a
  refusing kernel behind it. So its limits stay open. The integral that follows the applied demand
  is a bias beside the integral of the library; only their sum matters. (``set_auto_mode`` with
  ``last_output`` is no substitute: it sets the integral to the output, which counts the
  proportional part twice, and it resets the last input, which removes the derivative.)
"""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
import math

from simple_pid import PID

from controller.core.decision import UNKNOWN, ChannelState, Indicator, IndicatorStatus
from controller.core.limiters import LowPass
from controller.core.settings import Gains, IndicatorSpec

__all__ = ("HIGHEST", "LOWEST", "IndicatorLoop", "PidLoop", "clip", "dead_zone", "deviation")

# A deviation that is high in so many ticks is beyond the noise that the low-pass is for.
_HIGH_TICKS = 2
# The ends of the scale of deviations. A service that hardly runs is at the lowest as well.
LOWEST = -1.0
HIGHEST = 2.0


def deviation(value: float, sweet_point: float, spec: IndicatorSpec) -> float:
    """Return the log ratio of *value* to *sweet_point* to the base tolerance, without limits.

    *sweet_point*, in the unit of *value*, is that of *spec* or that of the load bin. A value below
    the resolution of *spec* counts as the resolution.
    """
    ratio = max(value, spec.resolution) / sweet_point
    return math.log(ratio) / math.log(spec.tolerance)


def clip(deviation: float) -> float:
    """Return *deviation* within the ends of the scale of the loops, [-1, 2]."""
    return min(HIGHEST, max(LOWEST, deviation))


def dead_zone(value: float, half_width: float) -> float:
    """Return *value* moved towards zero by *half_width*; continuous, zero inside the zone."""
    return value - min(half_width, max(-half_width, value))


class PidLoop:
    """The PID of one service, indicator and channel.

    ``demand`` is the output of the last update. It is not limited to [0, 1].
    """

    __slots__ = ("_bias", "_error", "_gains", "_pid", "demand")

    def __init__(self, gains: Gains, demand: float) -> None:
        """*demand* is the first output if the deviation is zero."""
        self._gains = gains
        self._pid = PID(
            gains.kp,
            gains.kp / gains.ti_s,
            gains.kp * gains.td_s,
            setpoint=0.0,
            sample_time=None,
            output_limits=(None, None),
            time_fn=lambda: 0.0,
        )
        self._bias = demand
        self._error: float | None = None
        self.demand = demand

    def retune(self, gains: Gains) -> None:
        """Take new gains without a jump of the output."""
        proportional = self._pid.components[0]
        self._pid.tunings = (gains.kp, gains.kp / gains.ti_s, gains.kp * gains.td_s)
        self._bias += proportional - gains.kp * (self._error or 0.0)
        self._gains = gains

    def begin(self) -> None:
        """Let the first update count in full, unless there was one.

        Otherwise it has no proportional part, so that a loop begins at the demand that is applied.
        """
        if self._error is None:
            self._error = 0.0

    def update(self, error: float, dt_s: float) -> float:
        """Take the deviation *error*, *dt_s* after the last one, and return the demand."""
        if self._error is None:
            # Bumpless start: the bias cancels the first proportional part.
            self._bias -= self._gains.kp * error
        self._error = error
        output = self._pid(-error, dt=dt_s)
        assert output is not None
        self.demand = float(output) + self._bias
        return self.demand

    def track(self, applied: float, dt_s: float) -> None:
        """Anti-windup by external reset: move the integral towards the *applied* demand.

        The time constant is the integral time of the gains.
        """
        share = min(1.0, dt_s / self._gains.ti_s)
        self._bias += share * (applied - self.demand)

    def converge(self, applied: float) -> None:
        """Go to the limit of infinitely many steps at a constant deviation and *applied* demand.

        There the integral gains in every step what ``track`` takes away.
        """
        self.shift(applied + self._gains.kp * (self._error or 0.0) - self.demand)

    def shift(self, by: float) -> None:
        """Add *by* to the demand, now and in all later updates."""
        self._bias += by
        self.demand += by


@dataclass(slots=True)
class IndicatorLoop:
    """One loop: the indicator, its deviation, the low-pass and the PID; starts at *applied*.

    ``excess`` is the deviation without the limits of its scale, ``high_ticks`` the number of ticks
    since when the deviation is high, and ``stale`` that since when there is no data. ``moved``: the
    PID was updated in this tick. ``is_bounded``: the deviation is larger than what a squeeze can
    bring. A loop without an ``indicator`` is off: the host never had a source for it. Without data
    it holds for a few ticks, then its ``state`` is safe.
    """

    spec: IndicatorSpec
    applied: InitVar[float]
    pid: PidLoop = field(init=False)
    filter: LowPass = field(default_factory=LowPass)
    indicator: Indicator | None = None
    excess: float | None = None
    high_ticks: int = 0
    stale: int = 0
    state: ChannelState = ChannelState.FREE
    moved: bool = False
    is_bounded: bool = False

    def __post_init__(self, applied: float) -> None:
        self.pid = PidLoop(self.spec.gains, applied)

    @property
    def deviation(self) -> float | None:
        """The unfiltered deviation; ``None`` if it is not known."""
        return None if self.excess is None else clip(self.excess)

    @property
    def converged(self) -> bool:
        """Whether the loop is off, or has converged to the lowest deviation."""
        lowest = self.moved and self.deviation == LOWEST
        return self.indicator is None or (lowest and (self.filter.value or 0.0) <= 0.99 * LOWEST)

    @property
    def sweet_point(self) -> float | None:
        """The sweet point at the present load; ``None`` where it is not learned yet."""
        learned = None if self.indicator is None else self.indicator.sweet_point
        return self.spec.sweet_point if learned is None else learned

    def set_spec(self, spec: IndicatorSpec) -> None:
        """Take another spec of the same indicator without a jump of the demand."""
        if self.spec is not spec:
            self.spec = spec
            self.pid.retune(spec.gains)

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
        self.indicator = indicator
        self.excess = None
        if indicator is not None:
            self._take(indicator, stale_ticks)
        deviation = self.deviation
        self.moved = deviation is not None and not hold
        self.high_ticks = self.high_ticks + 1 if (deviation or 0.0) >= high else 0
        if deviation is None or hold:
            return
        if self.high_ticks:
            self.pid.begin()
        if self.high_ticks >= _HIGH_TICKS and lasts(self.spec, self.sweet_point or 0.0):
            self.filter.value = max(deviation, self.filter.value or 0.0)
        most = log_gain / math.log(self.spec.tolerance)
        filtered = self.filter.update(deviation, dt_s, self.spec.filter_ns / 1e9)
        self.is_bounded = filtered > most
        self.pid.update(dead_zone(min(filtered, most), self.spec.dead_zone), dt_s)

    def _take(self, indicator: Indicator, stale_ticks: int) -> None:
        status, sweet_point = indicator.status, self.sweet_point
        self.stale = self.stale + 1 if status is IndicatorStatus.STALE else 0
        self.state = ChannelState.FREE
        if status in UNKNOWN:
            is_long = self.stale > stale_ticks
            self.state = ChannelState.SAFE if is_long else ChannelState.HOLD
        elif status is IndicatorStatus.IDLE:
            self.excess = LOWEST  # the service hardly runs, so nothing can hurt it
        elif indicator.value is not None:
            self.excess = LOWEST  # not learned yet
            if sweet_point is not None:
                self.excess = deviation(indicator.value, sweet_point, self.spec)
