# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a memory bandwidth setting really leaves of the bandwidth, learned from measuring it.

Intel's percent scale throttles requests, and what that does to the bandwidth depends on the
program: 50 % may leave nine tenths of it. So the bandwidth that best-effort gets is measured at
each value, and the demand is served from what was measured. Values not tried yet are guessed
from those that were. Without a measurement the percent scale is believed.
"""

from collections.abc import Hashable, Mapping
import math

from controller.core.settings import MbaUnit, ResctrlFacts
from controller.core.units import NS_PER_SEC

__all__ = ("MbaCurve",)

# A new value shows in the smoothed bandwidth after this time.
_SETTLE_NS = 3 * NS_PER_SEC
# More bandwidth than believed is believed quickly, less slowly: best-effort may only have had
# less to do for a moment.
_MORE_S = 1.0
_LESS_S = 30.0
_LEAST = 0.01
_IDLE_PART = 0.3
_BYTES_PER_UNIT = {MbaUnit.ABSOLUTE: 1e9 / 8, MbaUnit.MBPS: 2.0**20}


class MbaCurve:
    """Remembers the part of the unthrottled bandwidth that each value left."""

    __slots__ = ("_facts", "_full", "_last_ns", "_learned", "_since_ns", "_value", "_wanted")

    def __init__(self) -> None:
        self._facts: ResctrlFacts | None = None
        self._full: dict[Hashable, float] = {}
        self._learned: dict[int, float] = {}
        self._value: int | None = None
        self._since_ns = 0
        self._last_ns = 0
        self._wanted: float | None = None

    def update(
        self, value: int, facts: ResctrlFacts, rates: Mapping[Hashable, float], now_ns: int
    ) -> None:
        """Take what each of best-effort uses at *value*, in bytes/s; nobody: not measured."""
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
            return  # it has too little to do for the setting to hold it back
        if known is None:
            self._learned[value] = part
        else:
            weight = 1.0 - math.exp(-dt_s / (_MORE_S if part > known else _LESS_S))
            self._learned[value] = known + weight * (part - known)

    def _update_full(
        self, value: int, facts: ResctrlFacts, rates: Mapping[Hashable, float], dt_s: float
    ) -> None:
        """Follow what everybody would use unthrottled, which shows only while he is."""
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
        """Return the part of the bandwidth that *value* is believed to leave, in (0, 1]."""
        facts = self._facts
        if facts is None or value >= facts.mba_max:
            return 1.0
        if facts.mba_unit is not MbaUnit.PERCENT:
            return max(_LEAST, self._absolute(value, facts))
        if not self._learned:
            return max(_LEAST, value / facts.mba_max)
        return max(_LEAST, self._between(value, facts.mba_max))

    def _absolute(self, value: int, facts: ResctrlFacts) -> float:
        if self._wanted is None:
            return value / facts.mba_max
        limit = value * _BYTES_PER_UNIT[facts.mba_unit] * max(1, len(facts.domains))
        return min(1.0, limit / self._wanted)

    def _between(self, value: int, full: int) -> float:
        """Return the part on the line through the nearest values that were tried."""
        below, low = 0, 0.0
        for tried, part in sorted(self._learned.items()):
            # A larger value never leaves less, whatever a quiet moment made of it.
            part = max(part, low)
            if tried >= value:
                return low + (part - low) * (value - below) / (tried - below)
            below, low = tried, part
        return low + (1.0 - low) * (value - below) / (full - below)
