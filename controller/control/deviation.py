# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How far an indicator is from its sweet point, on a scale that all indicators share.

0 is at the sweet point, 1 is *tolerance* times over it, -1 as far below. More means that the
service suffers more.
"""

import math

from controller.settings import IndicatorSpec

__all__ = ("LOWEST", "LowPass", "dead_zone", "deviation")

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
