# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Intervals of means of few paired differences."""

from collections.abc import Sequence
import math
from statistics import fmean, stdev

__all__ = ("Interval", "mean_interval", "ratio_interval")

# Middle, lowest, highest.
Interval = tuple[float, float, float]

# The 0.975 quantile of Student's t by degrees of freedom, from 1 on (Abramowitz and Stegun 1964,
# table 26.10); above 30, that of 30.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def mean_interval(rows: Sequence[Sequence[float]], least_deviation: float = 0.0) -> Interval:
    """Return the mean of the means of *rows* and its 95 % interval by Student's t.

    Rows are strata: each has its own mean and deviation, at least *least_deviation*, which is the
    rounding error of a value. The degrees of freedom are those of Welch and Satterthwaite, rounded
    down. With a row of a single value the interval is endless.

    :raises ValueError: there is no row, or one without a value.
    """
    if not rows or not all(rows):
        raise ValueError("no values")
    mean = sum(sum(row) / len(row) for row in rows) / len(rows)
    if any(len(row) < 2 for row in rows):
        return mean, -math.inf, math.inf
    variances = [max(stdev(row), least_deviation) ** 2 / len(row) for row in rows]
    total = sum(variances)
    if total == 0:
        return mean, mean, mean
    freedom = total**2 / sum(
        variance**2 / (len(row) - 1) for variance, row in zip(variances, rows, strict=True)
    )
    # An exact whole number may come out a rounding error too low.
    half = _T[min(int(freedom + 1e-9), len(_T)) - 1] * math.sqrt(total) / len(rows)
    return mean, mean - half, mean + half


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Interval:
    """Return the geometric mean of the ratios of *pairs* of positive values, and its interval.

    :raises ValueError: there is no pair.
    """
    _, low, high = mean_interval([[math.log(one / other) for one, other in pairs]])
    middle = math.exp(fmean(math.log(one / other) for one, other in pairs))
    return middle, math.exp(low), math.inf if high > 700 else math.exp(high)
