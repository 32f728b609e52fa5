# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Quantile of a histogram on a page of metrics, of what happened between two requests.

Buckets are cumulative, by their upper bound, and grow from the start of the service on. So a
quantile needs the difference of two pages. It is interpolated as ``histogram_quantile`` of
Prometheus does, so its error is at most one bucket.
"""

from collections.abc import Iterable, Mapping
import math

from controller.probes.service_level.ledger import Reason, SourceError

__all__ = ("Buckets", "HistogramWindow", "quantile")

# By the labels of a series, without ``le``: the counts by upper bound.
Buckets = Mapping[tuple[tuple[str, str], ...], Mapping[float, float]]


class HistogramWindow:
    """The last page of one histogram."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: Buckets | None = None

    def update(self, now: Buckets, part: float) -> float:
        """Return the quantile *part* since the last page; NaN without one, or without requests.

        A series that has started anew, or is new, counts from its start.

        :raises SourceError: see ``quantile``.
        """
        before, self._before = self._before, now
        if before is None:
            return math.nan
        return quantile((_since(before.get(labels, {}), now[labels]) for labels in now), part)


def _since(before: Mapping[float, float], now: Mapping[float, float]) -> Mapping[float, float]:
    restarted = before.keys() != now.keys() or any(now[each] < before[each] for each in now)
    return now if restarted else {each: now[each] - before[each] for each in now}


def quantile(series: Iterable[Mapping[float, float]], part: float) -> float:
    """Return the quantile *part*, in (0, 1), of all *series* together; NaN if they are empty.

    Above the largest finite bound it is this bound.

    :raises SourceError: a series has no infinite bound, or the bounds of two series differ.
    """
    total: dict[float, float] = {}
    for one in series:
        if math.inf not in one:
            raise SourceError(Reason.FORMAT, 'a histogram without a bucket le="+Inf"')
        if not total:
            total = dict(one)
            continue
        if total.keys() != one.keys():
            text = "histograms with different buckets; add labels"
            raise SourceError(Reason.AMBIGUOUS, text)
        for bound, count in one.items():
            total[bound] += count
    whole = total.get(math.inf, 0.0)
    if whole <= 0:
        return math.nan
    rank, below, low = part * whole, 0.0, min(0.0, *total)
    for bound in sorted(total):
        count = total[bound]
        if count >= rank and count > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / (count - below)
        # A page is not read at one moment, so a count may be a little below the one before it.
        if count > below:
            below = count
        low = bound
    return low
