# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the objective of a service says about sweet points: that of its own figure, and others.

**Relation**: how a service's own latency follows an indicator, and which value its objective
allows. The model is ln(latency / objective) = a + b x, where x is what the indicator says about the
time that the service's work takes longer: the logarithm of CPI, misses or CPU time per packet over
their normal value, ln(1 + wait / normal latency) for a wait, and -ln(1 - share) for a share of the
time that is lost. It is fitted with fading weights. The objective must be kept in 98 % of the
windows, so the 98th percentile of what the model leaves unexplained (for a normal distribution) is
added: it stands for everything else that makes requests slow, such as load and the other resources,
and the more of that there is, the smaller is the value that is allowed.

The result lies at most a step above what was seen while the objective was kept. That step is also
taken while the relation is not known, as long as the objective is kept: without it a service whose
indicators are held at their normal values would never show what it can bear.

**Margin**: how far below its objective the sweet point of the service's own figure has to lie. A
loop holds the average of a figure at its sweet point, but an objective is meant for every single
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

from collections.abc import Sequence
from dataclasses import replace
import math

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.learning.normal import Distribution, bounded_log, quantile
from controller.core.settings import IndicatorSpec
from controller.core.units import format_duration

__all__ = ("MISSED", "Margin", "Objective", "Relation")

# Pairs after which a pair has lost two thirds of its weight: half an hour at one per second.
_MEMORY = 1800.0
# A figure of the service covers several seconds, so this many pairs are worth one.
_CORRELATED = 5.0
_LEAST_PAIRS = 120.0
# Standard deviation of x below which a slope is noise, and standard errors that the slope must
# exceed.
_NOISE, _LEAST_T = 0.03, 4.0
# Share of pairs that keep the objective, and that quantile of the normal distribution, in standard
# deviations.
_KEPT, _KEPT_DEVIATIONS = 0.98, 2.05
# How far above what was seen the indicator may go: the work takes 5 % longer. One bin of the
# distribution is one eighth of this, so x is resolved to 0.6 %.
_STEP = 0.05

# Share of figures that may miss the objective: half of the 1 % that the comparison of policies in
# docs/SIMULATION.md allows.
MISSED = 0.005
# Spreads before anything is known, half of the most and twice the fewest. A missed objective adds
# some; misses in a row, of which a change of the load brings two or three, count once.
_SPREADS, _ADDED = 2.0, 0.4
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


class Relation:
    """The fit for one indicator of one service; ``pairs`` is the number of pairs, with weights."""

    __slots__ = ("_added", "_kept", "_most", "_sums")

    def __init__(self, sums: Sequence[float] = (), kept: Distribution | None = None) -> None:
        """The arguments are those of an earlier object (``state``)."""
        # Weights, sums of x, y, xx, xy, yy, and weights of pairs that miss the objective.
        self._sums = list(sums) if len(sums) == 7 else [0.0] * 7
        self._kept = kept or Distribution()
        self._added = 0
        self._most = self._furthest()

    @property
    def state(self) -> tuple[tuple[float, ...], Distribution]:
        """The arguments with which an equal object is made."""
        return tuple(self._sums), self._kept

    @property
    def pairs(self) -> float:
        """The number of pairs, those of long ago with less weight."""
        return self._sums[0]

    def add(self, x: float, latency_to_objective: float) -> None:
        """Take a pair: *x*, and the ratio of the latency to its objective."""
        y = bounded_log(latency_to_objective)
        keep = 1.0 - 1.0 / _MEMORY
        missed = float(y > 0 and x <= self._most)
        new = (1.0, x, y, x * x, x * y, y * y, missed)
        self._sums = [keep * old + one for old, one in zip(self._sums, new, strict=True)]
        if y <= 0:
            self._kept.add(x / _STEP)
        self._added += 1
        if self._added % 10 == 0:  # it takes time
            self._most = self._furthest()

    @property
    def allowed(self) -> float | None:
        """The x at which the objective is just kept; ``None``: that is not known."""
        line = self._line()
        if line is None or not self._kept.total:
            return None
        a, b, deviation = line
        return min(-(a + _KEPT_DEVIATIONS * deviation) / b, self._most)

    @property
    def step(self) -> float | None:
        """The x to which the indicator may go if nothing else is known; ``None``: nowhere."""
        missed = (1.0 - _KEPT) / 2
        if self.pairs < _LEAST_PAIRS / 2 or self._sums[-1] > missed * self.pairs:
            return None
        return self._most

    def _furthest(self) -> float:
        return quantile((self._kept,), _KEPT) * _STEP + _STEP

    def _line(self) -> tuple[float, float, float] | None:
        """Return a, b and the standard deviation of the rest, if b is certain and above 0."""
        n, x, y, xx, xy, yy, _ = self._sums
        if n < _LEAST_PAIRS:
            return None
        varied, together = xx - x * x / n, xy - x * y / n
        if varied <= n * _NOISE**2:
            return None
        b = together / varied
        rest = max(0.0, yy - y * y / n - b * together)
        error = math.sqrt(rest / n / varied * _CORRELATED)
        if b <= 0 or b < _LEAST_T * error:
            return None
        return (y - b * x) / n, b, math.sqrt(rest / n)


class Margin:
    """The margin of one service: ``spreads`` times its ``spread``.

    The spread is the median of the distances between one figure and the next. Steps of the load
    hardly move a median, and the slow swing of a loop hardly differs between two figures. (The
    distance from an average contains that swing, which grows with the margin: both ran away.)
    """

    __slots__ = ("_kept", "_last", "spread", "spreads")

    def __init__(self, spread: float = _SPREAD, spreads: float = _SPREADS) -> None:
        """The arguments are those of an earlier object."""
        self._set(spread, spreads)
        self._last: float | None = None
        # The last figures that kept the objective in a row.
        self._kept = 2

    def _set(self, spread: float, spreads: float) -> None:
        self.spread = min(_MOST_SPREAD, max(_LEAST_SPREAD, spread))
        self.spreads = min(2 * _SPREADS, max(_SPREADS / 2, spreads))

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
        missed = 0.0 if self._kept < 2 else _ADDED
        added = missed if figure > 0 else -_ADDED * MISSED
        self._kept = self._kept + 1 if figure <= 0 else 0
        self._set(self.spread * (1 + pace), self.spreads + added)

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
        """*spec* is as configured, *before* the object that this one replaces."""
        self.spec = spec
        is_same = before is not None and before.spec == spec
        self.in_force: IndicatorSpec = before.in_force if before and is_same else spec
        self._objective = spec.objective or math.inf
        self._margin = margin

    def add(self, indicator: Indicator | None, is_squeezed: bool) -> None:
        """Take the service's figure in one tick; *is_squeezed*: see ``Margin.add``."""
        if indicator is not None and indicator.status is IndicatorStatus.FRESH and indicator.value:
            self._margin.add(indicator.value / self._objective, is_squeezed)

    def put_in_force(self) -> bool:
        """Take the present margin if it differs; return whether it does."""
        point, known = self._objective * self._margin.ratio, self.in_force.sweet_point or 0.0
        if abs(point - known) <= 0.05 * known:  # not worth a change
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
