# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The normal values of one indicator at one load, and the sweet point that follows from them.

Values are logarithms to the base of the indicator's tolerance: a difference of 1 is a factor of one
tolerance, so one set of constants fits latencies, which vary by factors, and CPI, which varies by
per cents. Larger is worse.
"""

from collections.abc import Iterable
import math
from typing import NamedTuple

__all__ = ("LEAST_WINDOWS", "Distribution", "LearnedLoad", "Normal", "bounded_log")

# Width of a bin. Quantiles are exact to half of it: 4 % at a tolerance of 2, 0.6 % at 1.1.
_WIDTH = 0.125
# 5,000 tolerances. At the least that a profile may have, 1.01, a value of 10**18 is 4,200 away.
_FURTHEST_BIN = 40_000
# Windows after which the older half fades to half of its weight: two hours of one-second windows.
_MEMORY = 7200.0
# With fewer windows a 95th percentile is the maximum.
LEAST_WINDOWS = 30
# Windows of one half before the other half's turn: the halves then differ by what varies over
# seconds, which single windows would hide.
_BLOCK = 5
# Halves that differ by more than this describe two states of the service, not one.
_DIFFER = 0.5
_QUANTILE = 0.95


class LearnedLoad(NamedTuple):
    """What is known at one load: its number, and the state of its ``Normal``."""

    load: int
    windows: int = 0
    middle: float | None = None
    high: float | None = None
    is_sure: bool = False
    halves: tuple[tuple[tuple[int, float], ...], tuple[tuple[int, float], ...]] = ((), ())


class Distribution:
    """Counts of values in bins of equal width; old counts fade as new values come."""

    __slots__ = ("bins", "total")

    def __init__(self, bins: Iterable[tuple[int, float]] = ()) -> None:
        """*bins* are those of an earlier distribution."""
        # The counts by number of the bin.
        self.bins: dict[int, float] = {}
        for number, count in bins:
            if abs(number) <= _FURTHEST_BIN and 0 < count <= _MEMORY:
                self.bins[number] = count
        self.total = sum(self.bins.values())

    def add(self, value: float) -> None:
        """Count *value*."""
        number = max(-_FURTHEST_BIN, min(_FURTHEST_BIN, round(value / _WIDTH)))
        self.bins[number] = self.bins.get(number, 0.0) + 1.0
        self.total += 1.0
        if self.total > _MEMORY:
            self.bins = {n: count / 2 for n, count in self.bins.items() if count >= 1.0}
            self.total = sum(self.bins.values())


def bounded_log(ratio: float) -> float:
    """Return the logarithm of *ratio*, of a service's figure to its objective, within limits.

    A service may report any figure, also one that is negative or as good as nothing.
    """
    return math.log(min(1e6, max(1e-6, ratio)))


def quantile(parts: Iterable[Distribution], share: float) -> float:
    """Return the value that *share* of all counts in *parts* do not exceed; 0 without counts."""
    bins: dict[int, float] = {}
    for part in parts:
        for number, count in part.bins.items():
            bins[number] = bins.get(number, 0.0) + count
    left = share * sum(bins.values())
    number = 0
    for number in sorted(bins):
        left -= bins[number]
        if left <= 0:
            break
    return number * _WIDTH


class Normal:
    """The values at one load, in two halves that are filled in turn.

    ``windows`` is the number of values so far, ``spread`` the distance between their 5th and 95th
    percentile as of the last block, ``certainty`` says how far they can be relied on, 0 to 1:
    whether there are enough, and the halves agree. ``middle`` and ``high`` are the median and the
    95th percentile, to be used while ``is_sure``; ``None``: that was never so. From then on they
    move by at most one tolerance while the number of windows doubles, so a bad hour after a good
    week moves them by per cents.
    """

    __slots__ = ("certainty", "halves", "high", "is_sure", "middle", "spread", "windows")

    def __init__(self, past: LearnedLoad | None = None) -> None:
        """*past* is the record of an earlier object."""
        past = past or LearnedLoad(0)
        self.halves = Distribution(past.halves[0]), Distribution(past.halves[1])
        self.windows, self.middle, self.high = past.windows, past.middle, past.high
        self.is_sure = past.is_sure
        self._assess(LEAST_WINDOWS)

    def record(self, load: int) -> LearnedLoad:
        """Return the record, at the load of this number, with which an equal object is made."""
        first, second = (tuple(half.bins.items()) for half in self.halves)
        return LearnedLoad(
            load, self.windows, self.middle, self.high, self.is_sure, (first, second)
        )

    def sweet_point(self, above: float) -> float:
        """Return the sweet point: *above* the median, or the 95th percentile if that is higher."""
        return max((self.middle or 0.0) + above, self.high or 0.0)

    def add(self, value: float, least: int = LEAST_WINDOWS) -> None:
        """Take the value of one window; *least* is the fewest windows to be sure."""
        self.halves[self.windows // _BLOCK % 2].add(value)
        self.windows += 1
        if self.windows % _BLOCK == 0:
            self._update(least)

    def _assess(self, least: int) -> None:
        self.certainty = self.spread = 0.0
        if all(half.total for half in self.halves):
            differ = max(
                abs(quantile(self.halves[:1], share) - quantile(self.halves[1:], share))
                for share in (0.5, _QUANTILE)
            )
            enough = min(1.0, self.windows / least)
            self.certainty = enough * min(1.0, _DIFFER / max(differ, _WIDTH))
            self.spread = quantile(self.halves, _QUANTILE) - quantile(self.halves, 1.0 - _QUANTILE)

    def _update(self, least: int) -> None:
        self._assess(least)
        # What was sure remains so while the halves are not four times as far apart.
        self.is_sure = self.certainty >= (0.25 if self.is_sure else 1.0)
        if self.is_sure:
            self.middle = self._moved(self.middle, quantile(self.halves, 0.5))
            self.high = self._moved(self.high, quantile(self.halves, _QUANTILE))

    def _moved(self, before: float | None, wanted: float) -> float:
        if before is None:
            return wanted
        most = _BLOCK / min(float(self.windows), 2 * _MEMORY)
        return before + max(-most, min(most, wanted - before))
