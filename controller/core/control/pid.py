# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One PID loop: deviation in, demand out, on simple-pid.

Three habits of simple-pid are worked around here and nowhere else. It reads a clock unless it
is told the time step. It computes ``setpoint - input``, so it is fed the negative deviation at
a set point of zero. And it only clamps its own integral, knowing nothing of a selector, a slew
limit or a refusing kernel behind it: so its limits stay open, and what tracks the applied
value is a bias beside its integral, which is the same sum. (``set_auto_mode(last_output=)`` is
no help there: it seeds the integral with the output, which then counts the proportional part
twice, and it forgets the last input, which kills the derivative.)

How far an indicator is from its sweet point, on a scale that all indicators share.

0 is at the sweet point, 1 is *tolerance* times over it, -1 as far below. More means that the
service suffers more.
"""

import math

from simple_pid import PID

from controller.core.settings import Gains, IndicatorSpec

__all__ = (
    "LOWEST",
    "LowPass",
    "PidLoop",
    "dead_zone",
    "deviation",
)


class PidLoop:
    """The loop of one (service, indicator, channel).

    ``demand`` is its unlimited output of the last update.
    """

    __slots__ = ("_bias", "_error", "_gains", "_pid", "demand")

    def __init__(self, gains: Gains, demand: float) -> None:
        """Start so that the first output at deviation zero is *demand*."""
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

    @property
    def gains(self) -> Gains:
        """The gains in force."""
        return self._gains

    def retune(self, gains: Gains) -> None:
        """Take new gains without a jump of the output."""
        proportional = self._pid.components[0]
        self._pid.tunings = (gains.kp, gains.kp / gains.ti_s, gains.kp * gains.td_s)
        self._bias += proportional - gains.kp * (self._error or 0.0)
        self._gains = gains

    def update(self, error: float, dt_s: float) -> float:
        """Take the deviation *error* after *dt_s* seconds and return the unlimited demand."""
        if self._error is None:
            # Bumpless start: what the proportional part adds now, the integral gives back.
            self._bias -= self._gains.kp * error
        self._error = error
        output = self._pid(-error, dt=dt_s)
        assert output is not None
        self.demand = float(output) + self._bias
        return self.demand

    def shift(self, by: float) -> None:
        """Add *by* to the demand, from now on."""
        self._bias += by
        self.demand += by

    def converge(self, applied: float) -> None:
        """Go to where a constant deviation and a constant demand *applied* lead in the end.

        There the integral adds in every step what ``track`` takes away.
        """
        self.shift(applied + self._gains.kp * (self._error or 0.0) - self.demand)

    def track(self, applied: float, dt_s: float) -> None:
        """External reset: pull the integral towards the demand that was really *applied*."""
        share = min(1.0, dt_s / self._gains.ti_s)
        self._bias += share * (applied - self.demand)


def _no_clock() -> float:
    return 0.0


# Also of a service that hardly runs.
LOWEST = -1.0
_HIGHEST = 2.0


def deviation(value: float, sweet_point: float, spec: IndicatorSpec) -> float:
    """Return the log ratio of *value* to *sweet_point*, clipped to [-1, 2].

    *sweet_point* is the one of *spec*, or another for the load.
    """
    ratio = max(value, spec.resolution) / sweet_point
    return min(_HIGHEST, max(LOWEST, math.log(ratio) / math.log(spec.tolerance)))


def dead_zone(value: float, half_width: float) -> float:
    """Return *value* moved towards zero by *half_width*; continuous, zero inside the zone."""
    return value - min(half_width, max(-half_width, value))


class LowPass:
    """First-order low-pass that starts at its first input."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def update(self, value: float, dt_s: float, time_constant_s: float) -> float:
        """Fold *value* in and return the filtered value."""
        if self.value is None or time_constant_s <= 0:
            self.value = value
        else:
            self.value += (1.0 - math.exp(-dt_s / time_constant_s)) * (value - self.value)
        return self.value
