# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How a service's own latency follows an indicator, and which value its objective allows.

The model is ln(latency / objective) = a + b x, where x is what the indicator says about the time
that the service's work takes longer: the logarithm of CPI, misses or CPU time per packet over their
normal value, ln(1 + wait / normal latency) for a wait, and -ln(1 - share) for a share of the time
that is lost. It is fitted with fading weights. A margin, the 98th percentile of what the model
leaves unexplained, stands for everything else that makes requests slow, such as load and the other
resources: the more of that there is, the smaller is the value that is allowed.

The result never lies above what was seen while the objective was kept.
"""

from collections.abc import Sequence
import math

from controller.core.learning.normal import Distribution, quantile

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
_MARGIN_RATE = 0.05
# One bin of the distribution is one eighth of this, so x is resolved to 0.6 %.
_UNIT = 0.05
_SUMS = 6


class Relation:
    """The fit for one indicator of one service; ``pairs`` is the number of pairs, with weights."""

    __slots__ = ("_kept", "_margin", "_sums")

    def __init__(
        self,
        sums: Sequence[float] = (),
        margin: float = 0.0,
        kept: Distribution | None = None,
    ) -> None:
        """The arguments are those of an earlier object (``state``)."""
        # Weights, and sums of x, y, xx, xy, yy.
        self._sums = list(sums) if len(sums) == _SUMS else [0.0] * _SUMS
        self._margin = margin
        self._kept = kept or Distribution()

    @property
    def state(self) -> tuple[tuple[float, ...], float, Distribution]:
        """The arguments with which an equal object is made."""
        return tuple(self._sums), self._margin, self._kept

    @property
    def pairs(self) -> float:
        """The number of pairs, those of long ago with less weight."""
        return self._sums[0]

    def add(self, x: float, latency_to_objective: float) -> None:
        """Take a pair: *x*, and the ratio of the latency to its objective (above 0)."""
        y = math.log(latency_to_objective)
        line = self._line()
        if line is not None:
            a, b, scale = line
            above = y - a - b * x > self._margin
            self._margin += _MARGIN_RATE * scale * (_KEPT if above else _KEPT - 1.0)
        keep = 1.0 - 1.0 / _MEMORY
        new = (1.0, x, y, x * x, x * y, y * y)
        self._sums = [keep * old + one for old, one in zip(self._sums, new, strict=True)]
        if y <= 0:
            self._kept.add(x / _UNIT)

    @property
    def allowed(self) -> float | None:
        """The x at which the objective is just kept; ``None``: no relation is known."""
        line = self._line()
        if line is None:
            return None
        a, b, _ = line
        seen = quantile((self._kept,), _KEPT)
        if seen is None:
            return None
        return min(-(a + self._margin) / b, seen * _UNIT)

    def _line(self) -> tuple[float, float, float] | None:
        """Return a, b and the standard deviation of the rest, if b is certain and above 0."""
        n, x, y, xx, xy, yy = self._sums
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
