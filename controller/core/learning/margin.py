# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How far below its objective the sweet point of a service's own figure has to lie.

A loop holds the average of a figure at its sweet point, but an objective is meant for every single
figure. What lies between them is the scatter of the figure, which no squeeze removes and which
differs from service to service: a p99 over a second of a hundred requests scatters by a third, one
over a minute by per cents. So the margin is a number of spreads of this very figure, as a
logarithm. The number follows the objective itself: it rises when a figure misses the objective in a
squeeze and falls slowly while none does, so that in the long run, within its bounds, the share
``MISSED`` of them does (adaptive conformal inference: Gibbs and Candes, NeurIPS 2021). Misses in a
row count once, so where they come in rows the share is larger.

Only figures in a squeeze for this service count. Without one the loop does not hold the figure, and
a figure that misses the objective for other reasons says nothing about the margin.
"""

from dataclasses import replace
import math

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.learning.normal import bounded_log
from controller.core.settings import IndicatorSpec
from controller.core.units import format_duration

__all__ = ("MISSED", "Margin", "Objective")

# Share of figures that may miss the objective: half of the 1 % that the comparison of policies in
# docs/SIMULATION.md allows.
MISSED = 0.005
# Spreads before anything is known, their bounds, and how many a missed objective adds. Misses in a
# row, of which a change of the load brings two or three, count once.
_SPREADS, _LEAST_SPREADS, _MOST_SPREADS = 2.0, 1.0, 4.0
_ADDED = 0.4
_APART = 2
# The spread, as a logarithm: two of the first make 0.8, the usual sweet point below an objective.
# The least one is more than that of smooth figures, because it also stands for what the loop itself
# moves.
_SPREAD, _LEAST_SPREAD, _MOST_SPREAD = 0.11, 0.09, 0.5
# How far one figure moves the spread: it doubles in 25 figures.
_PACE = 0.03
# Median of the distance of two values of a normal distribution, in standard deviations.
_DISTANCE = 0.954
# The sweet point is not below this part of the objective.
_LEAST = 0.4
# A change of the sweet point below this is not applied.
_SAME = 0.05


class Margin:
    """The margin of one service: ``spreads`` times its ``spread``.

    The spread is the median of the distances between one figure and the next. Steps of the load
    hardly move a median, and the slow swing of a loop hardly differs between two figures. (The
    distance from an average contains that swing, which grows with the margin: both ran away.)
    """

    __slots__ = ("_kept", "_last", "spread", "spreads")

    def __init__(self, spread: float = _SPREAD, spreads: float = _SPREADS) -> None:
        """The arguments are those of an earlier object."""
        self.spread = min(_MOST_SPREAD, max(_LEAST_SPREAD, spread))
        self.spreads = min(_MOST_SPREADS, max(_LEAST_SPREADS, spreads))
        self._last: float | None = None
        self._kept = _APART

    @property
    def state(self) -> tuple[float, float]:
        """The arguments with which an equal object is made."""
        return self.spread, self.spreads

    def add(self, figure_to_objective: float, is_squeezed: bool) -> None:
        """Take the figure of the service, relative to its objective.

        *is_squeezed*: best-effort work is squeezed for this service. A figure that equals the last
        one is the last one.
        """
        figure = bounded_log(figure_to_objective)
        before, self._last = self._last, figure
        if not is_squeezed or before is None or figure == before:
            return
        pace = _PACE if abs(figure - before) > _DISTANCE * self.spread else -_PACE
        self.spread = min(_MOST_SPREAD, max(_LEAST_SPREAD, self.spread * (1 + pace)))
        if figure <= 0:
            self._kept += 1
            self.spreads = max(_LEAST_SPREADS, self.spreads - _ADDED * MISSED)
            return
        if self._kept >= _APART:
            self.spreads = min(_MOST_SPREADS, self.spreads + _ADDED)
        self._kept = 0

    @property
    def ratio(self) -> float:
        """The sweet point as a part of the objective."""
        return max(_LEAST, math.exp(-self.spreads * self.spread))


class Objective:
    """The objective of one service; ``in_force`` is its indicator with the present sweet point."""

    __slots__ = ("_margin", "_objective", "in_force", "spec")

    def __init__(
        self, spec: IndicatorSpec, margin: Margin, before: "Objective | None" = None
    ) -> None:
        """*spec* is as configured, *before* the object that this one replaces.

        :raises ValueError: *spec* has no objective.
        """
        if spec.objective is None:
            raise ValueError(f"{spec.name} has no objective")
        self.spec = spec
        is_same = before is not None and before.spec == spec
        self.in_force: IndicatorSpec = before.in_force if before and is_same else spec
        self._objective = spec.objective
        self._margin = margin

    def add(self, indicator: Indicator | None, is_squeezed: bool) -> None:
        """Take the service's figure in one tick; *is_squeezed*: see ``Margin.add``."""
        if indicator is not None and indicator.status is IndicatorStatus.FRESH and indicator.value:
            self._margin.add(indicator.value / self._objective, is_squeezed)

    def put_in_force(self) -> bool:
        """Take the present margin if it differs; return whether it does."""
        point, known = self._objective * self._margin.ratio, self.in_force.sweet_point or 0.0
        if abs(point - known) <= _SAME * known:
            return False
        self.in_force = replace(self.spec, sweet_point=point)
        return True

    @property
    def reason(self) -> str:
        """The sweet point and why it lies there, for the log."""
        point, margin = self.in_force.sweet_point or 0.0, self._margin
        text = format_duration(point) if self.spec.is_time else f"{point:.3g}"
        return (
            f"sweet point {text}, {margin.ratio:.0%} of the objective: the figure scatters by "
            f"{margin.spread:.0%}, times {margin.spreads:.1f}"
        )
