# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The part of the memory bandwidth that each MBA value really leaves, learned by measurement.

Intel's percent scale throttles requests, and what that does to the bandwidth depends on the
program: 50 % may leave nine tenths of it. So the bandwidth of best-effort is measured at each value
in use, and a demand is mapped to a value by these measurements. Values not used so far are
interpolated. Without any measurement the percent scale is taken as it is.
"""

from collections.abc import Hashable, Mapping
import math

from controller.core.indicators.counters import smoothing
from controller.core.settings import MbaUnit, ResctrlFacts
from controller.core.units import NS_PER_SEC

__all__ = ("MbaCurve",)

# The smoothed bandwidth shows the effect of a new value after this time.
_SETTLE_NS = 3 * NS_PER_SEC
# Time constants: a measurement above the learned one is adopted quickly, one below it slowly,
# because best-effort may only have had less to do for a moment.
_MORE_S = 1.0
_LESS_S = 30.0
_LEAST = 0.01
# A bandwidth below this part of the expected one is not limited by the value, and teaches nothing.
_IDLE_PART = 0.3
_BYTES_PER_UNIT = {MbaUnit.ABSOLUTE: 1e9 / 8, MbaUnit.MBPS: 2.0**20}


class MbaCurve:
    """The part of the unthrottled bandwidth, in (0, 1], by MBA value."""

    __slots__ = ("_facts", "_full", "_last_ns", "_learned", "_since_ns", "_value", "_wanted")

    def __init__(self) -> None:
        self._facts: ResctrlFacts | None = None
        # The unthrottled bandwidth of each user, and of all together.
        self._full: dict[Hashable, float] = {}
        self._learned: dict[int, float] = {}
        self._value: int | None = None
        self._since_ns = 0
        self._last_ns = 0
        self._wanted: float | None = None

    def update(
        self, value: int, facts: ResctrlFacts, rates: Mapping[Hashable, float], now_ns: int
    ) -> None:
        """Take the bandwidth of each best-effort user at *value*, in bytes/s.

        Empty *rates*: not measured.
        """
        self._facts = facts
        if value != self._value:
            self._value, self._since_ns = value, now_ns
        dt_s, self._last_ns = (now_ns - self._last_ns) / 1e9, now_ns
        if now_ns - self._since_ns < _SETTLE_NS:
            return
        self._update_full(value, facts, rates, dt_s)
        if facts.mba_unit is not MbaUnit.PERCENT or value >= facts.mba_max or not self._wanted:
            return
        part = min(1.0, max(_LEAST, sum(rates.values()) / self._wanted))
        known = self._learned.get(value)
        if part < _IDLE_PART * self.part_at(value):
            return
        if known is None:
            self._learned[value] = part
        else:
            weight = smoothing(dt_s, _MORE_S if part > known else _LESS_S)
            self._learned[value] = known + weight * (part - known)

    def _update_full(
        self, value: int, facts: ResctrlFacts, rates: Mapping[Hashable, float], dt_s: float
    ) -> None:
        """Update the unthrottled bandwidth of each user, which shows only at the largest value."""
        keep = math.exp(-dt_s / _LESS_S)
        full: dict[Hashable, float] = {}
        for user, rate in rates.items():
            known = self._full.get(user)
            if value < facts.mba_max:
                full[user] = max(rate, rate / self.part_at(value) if known is None else known)
            else:
                full[user] = max(rate, rate + keep * ((known or 0.0) - rate))
        self._full = full
        self._wanted = sum(full.values()) or None

    def part_at(self, value: int) -> float:
        """Return the part of the bandwidth that *value* is expected to leave, in (0, 1]."""
        facts = self._facts
        if facts is None or value >= facts.mba_max:
            return 1.0
        if facts.mba_unit is not MbaUnit.PERCENT:
            return max(_LEAST, self._absolute(value, facts))
        if not self._learned:
            return max(_LEAST, value / facts.mba_max)
        return max(_LEAST, self._interpolate(value, facts.mba_max))

    def _absolute(self, value: int, facts: ResctrlFacts) -> float:
        if self._wanted is None:
            return value / facts.mba_max
        limit = value * _BYTES_PER_UNIT[facts.mba_unit] * max(1, len(facts.domains))
        return min(1.0, limit / self._wanted)

    def _interpolate(self, value: int, full: int) -> float:
        """Return the part on the line between the nearest measured values."""
        below, low = 0, 0.0
        for measured, part in sorted(self._learned.items()):
            # A larger value never leaves less: a smaller part was measured while less was used.
            part = max(part, low)
            if measured >= value:
                return low + (part - low) * (value - below) / (measured - below)
            below, low = measured, part
        return low + (1.0 - low) * (value - below) / (full - below)
