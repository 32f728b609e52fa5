# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How a service's own latency follows an indicator, and which value its objective allows.

The model is ln(latency / objective) = a + b x, where x is what the indicator says about the time
that the service's work takes longer: the logarithm of CPI, misses or CPU time per packet over their
normal value, ln(1 + wait / normal latency) for a wait, and -ln(1 - share) for a share of the time
that is lost. It is fitted with fading weights. The objective must be kept in 98 % of the windows,
so the 98th percentile of what the model leaves unexplained (for a normal distribution) is added: it
stands for everything else that makes requests slow, such as load and the other resources, and the
more of that there is, the smaller is the value that is allowed.

The result lies at most a step above what was seen while the objective was kept. That step is also
taken while the relation is not known, as long as the objective is kept: without it a service whose
indicators are held at their normal values would never show what it can bear.
"""

from collections.abc import Sequence
import math

from controller.core.learning.normal import Distribution, bounded_log, quantile

__all__ = ("Relation",)

# Pairs after which a pair has lost two thirds of its weight: half an hour at one per second.
_MEMORY = 1800.0
# A figure of the service covers several seconds, so this many pairs are worth one.
_CORRELATED = 5.0
_LEAST_PAIRS = 120.0
# Standard deviation of x below which a slope is noise, and standard errors that the slope must
# exceed.
_LEAST_SPREAD = 0.03
_LEAST_T = 4.0
_KEPT = 0.98
# That quantile of the normal distribution, in standard deviations.
_KEPT_DEVIATIONS = 2.05
# One bin of the distribution is one eighth of this, so x is resolved to 0.6 %.
_UNIT = 0.05
# How far above what was seen the indicator may go: the work takes 5 % longer.
_STEP = 0.05
_LEAST_TO_STEP = 60.0
# Share of windows that may miss the objective, at values that are allowed now, if a step is taken.
_MISSED = 0.01
# Pairs after which the range that was seen is computed anew.
_SEEN_EVERY = 10
_SUMS = 7


class Relation:
    """The fit for one indicator of one service; ``pairs`` is the number of pairs, with weights."""

    __slots__ = ("_added", "_kept", "_most", "_sums")

    def __init__(self, sums: Sequence[float] = (), kept: Distribution | None = None) -> None:
        """The arguments are those of an earlier object (``state``)."""
        # Weights, sums of x, y, xx, xy, yy, and weights of pairs that miss the objective.
        self._sums = list(sums) if len(sums) == _SUMS else [0.0] * _SUMS
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
            self._kept.add(x / _UNIT)
        self._added += 1
        if self._added % _SEEN_EVERY == 0:
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
        if self.pairs < _LEAST_TO_STEP or self._sums[-1] > _MISSED * self.pairs:
            return None
        return self._most

    def _furthest(self) -> float:
        return quantile((self._kept,), _KEPT) * _UNIT + _STEP

    def _line(self) -> tuple[float, float, float] | None:
        """Return a, b and the standard deviation of the rest, if b is certain and above 0."""
        n, x, y, xx, xy, yy, _ = self._sums
        if n < _LEAST_PAIRS:
            return None
        varied, together = xx - x * x / n, xy - x * y / n
        if varied <= n * _LEAST_SPREAD**2:
            return None
        b = together / varied
        rest = max(0.0, yy - y * y / n - b * together)
        error = math.sqrt(rest / n / varied * _CORRELATED)
        if b <= 0 or b < _LEAST_T * error:
            return None
        return (y - b * x) / n, b, math.sqrt(rest / n)
