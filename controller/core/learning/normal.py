# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The normal values of one indicator at one load, and the sweet point that follows from them.

Values are logarithms to the base of the indicator's tolerance: a difference of 1 is a factor of one
tolerance, so one set of constants fits latencies, which vary by factors, and CPI, which varies by
per cents. Larger is worse, also for an indicator of which less is worse.
"""

from collections.abc import Iterable, Mapping

__all__ = ("LEAST_WINDOWS", "Distribution", "Normal")

# Width of a bin. Quantiles are exact to half of it: 4 % at a tolerance of 2, 0.6 % at 1.1.
_WIDTH = 0.125
_FURTHEST_BIN = 4000
# Windows after which the older half fades to half of its weight: two hours of one-second windows.
_MEMORY = 7200.0
# With fewer windows a 95th percentile is the maximum.
LEAST_WINDOWS = 60
# Windows of one half before the other half's turn: the halves then differ by what varies over
# seconds, which single windows would hide.
_BLOCK = 10
# Halves that differ by more than this describe two states of the service, not one.
_SPREAD = 0.5
# The sweet point lies at least this far above the median, so that half of the tolerance is left
# for the noise of an indicator that hardly varied while it was learned.
_MARGIN = 0.5
_QUANTILE = 0.95
# A point that was sure is not below this certainty.
_KEEP = 0.25


class Distribution:
    """Counts of values in bins of equal width; old counts fade as new values come."""

    __slots__ = ("_bins", "total")

    def __init__(self, bins: Iterable[tuple[int, float]] = ()) -> None:
        """*bins* are those of an earlier distribution."""
        self._bins: dict[int, float] = {}
        for number, count in bins:
            if abs(number) <= _FURTHEST_BIN and 0 < count <= _MEMORY:
                self._bins[number] = count
        self.total = sum(self._bins.values())

    @property
    def bins(self) -> Mapping[int, float]:
        """The counts by number of the bin."""
        return self._bins

    def add(self, value: float) -> None:
        """Count *value*."""
        number = max(-_FURTHEST_BIN, min(_FURTHEST_BIN, round(value / _WIDTH)))
        self._bins[number] = self._bins.get(number, 0.0) + 1.0
        self.total += 1.0
        if self.total > _MEMORY:
            self._bins = {n: count / 2 for n, count in self._bins.items() if count >= 1.0}
            self.total = sum(self._bins.values())


def quantile(parts: Iterable[Distribution], share: float) -> float | None:
    """Return the value that *share* of all counts in *parts* do not exceed; ``None``: no counts."""
    bins: dict[int, float] = {}
    for part in parts:
        for number, count in part.bins.items():
            bins[number] = bins.get(number, 0.0) + count
    left = share * sum(bins.values())
    for number in sorted(bins):
        left -= bins[number]
        if left <= 0:
            return number * _WIDTH
    return max(bins, default=0) * _WIDTH if bins else None


class Normal:
    """The values at one load, in two halves that are filled in turn.

    ``windows`` is the number of values so far, ``certainty`` says how far they can be relied on, 0
    to 1: whether there are enough, and the halves agree. ``point`` is the sweet point, to be used
    while ``is_sure``; ``None``: it was never sure. From then on it moves by at most one tolerance
    while the number of windows doubles, so a bad hour after a good week moves it by per cents.
    """

    __slots__ = ("certainty", "halves", "is_sure", "point", "windows")

    def __init__(
        self,
        halves: tuple[Distribution, Distribution] | None = None,
        windows: int = 0,
        point: float | None = None,
        is_sure: bool = False,
    ) -> None:
        """The arguments are those of an earlier object."""
        self.halves = halves or (Distribution(), Distribution())
        self.windows = windows
        self.point = point
        self.is_sure = is_sure
        self.certainty = self._certainty()

    @property
    def median(self) -> float:
        """The median; there must be a value."""
        return quantile(self.halves, 0.5) or 0.0

    def add(self, value: float) -> None:
        """Take the value of one window."""
        self.halves[self.windows // _BLOCK % 2].add(value)
        self.windows += 1
        if self.windows % _BLOCK == 0:
            self._update_point()

    def _certainty(self) -> float:
        spread = 0.0
        for share in (0.5, _QUANTILE):
            ends = [quantile((half,), share) for half in self.halves]
            if ends[0] is None or ends[1] is None:
                return 0.0
            spread = max(spread, abs(ends[0] - ends[1]))
        return min(1.0, self.windows / LEAST_WINDOWS) * min(1.0, _SPREAD / max(spread, _WIDTH))

    def _update_point(self) -> None:
        self.certainty = self._certainty()
        self.is_sure = self.certainty >= (_KEEP if self.is_sure else 1.0)
        if not self.is_sure:
            return
        wanted = max(self.median + _MARGIN, quantile(self.halves, _QUANTILE) or 0.0)
        if self.point is None:
            self.point = wanted
            return
        most = _BLOCK / min(float(self.windows), 2 * _MEMORY)
        self.point += max(-most, min(most, wanted - self.point))
