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

import math

from simple_pid import PID

from controller.core.settings import Gains, IndicatorSpec

__all__ = (
    "HIGHEST",
    "LOWEST",
    "LowPass",
    "PidLoop",
    "clip",
    "dead_zone",
    "deviation",
)

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
            time_fn=_no_clock,
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


def _no_clock() -> float:
    return 0.0
