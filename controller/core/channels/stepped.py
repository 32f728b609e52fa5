# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rungs whose knob has few settings: cache ways, memory bandwidth and io.weight.

Cache ways and memory bandwidth (resctrl) are the first two rungs of the cache channel. They act on
the resctrl group that best-effort's tasks are in; every domain gets the same setting. io.weight is
the first rung of the io channel. ``MbaCurve`` learns what each setting of the memory bandwidth
really leaves.
"""

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
import math

from controller.core.channels.ladder import Rung, TickContext
from controller.core.knob_values import (
    format_amount,
    format_bandwidth,
    format_masks,
    lowest_ways,
    parse_bandwidth,
    parse_masks,
    parse_weight,
)
from controller.core.knobs.knob_state import Place
from controller.core.limiters import PATIENCE_S, StepSelector, rescale
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.core.settings import KnobLimits, MbaUnit, ResctrlFacts
from controller.core.units import NS_PER_SEC

__all__ = ("CacheWaysRung", "IoWeightRung", "MbaCurve", "MbaRung")

# io.weight of a cgroup with no weight set (block/blk-cgroup.h, CGROUP_WEIGHT_DFL).
_DEFAULT_WEIGHT = 100.0
# An absolute MBA scale may have thousands of values; this many of them, in equal factors, are
# enough.
_MOST_SETTINGS = 24

# A measurement above the learned one is adopted at once, one below it with this time constant,
# because best-effort may only have had less to do for a moment.
_LESS_S = 30.0
_LEAST = 0.01
# A bandwidth below this part of the expected one is not limited by the value, and teaches nothing.
_IDLE_PART = 0.3
_BYTES_PER_UNIT = {MbaUnit.ABSOLUTE: 1e9 / 8, MbaUnit.MBPS: 2.0**20}


class SteppedRung(Rung):
    """Moves one knob of all its targets through the same settings, see ``StepSelector``.

    ``part`` is the demand, in [0, 1] of this rung's range, that the setting in force satisfies.
    """

    def __init__(self, knob: Knob) -> None:
        self.knob = knob
        self._steps = StepSelector()
        self._scale: Sequence[float] = (0.0,)
        self._written: int | None = None

    @property
    def level(self) -> int:
        """The setting in force, 0 for free."""
        return self._steps.level

    def usable(self, context: TickContext) -> bool:
        """Return whether there is a target whose knob can be moved now."""
        return any(
            _is_ours(each, context) for each in context.knobs.movable(self.knob, context.now_ns)
        )

    def rescale(self, part: float, context: TickContext) -> float:
        """Update the scale, and return the demand that stands on it for what *part* stood for."""
        limits = context.workload_index.limits[self.knob]
        before, self._scale = self._scale, self._edges(limits)
        return rescale(part, before, self._scale)

    def set_part(self, part: float, context: TickContext) -> float | None:
        """Select the setting for *part*; return its demand, ``None`` if the knob is free."""
        applied = self._steps.set_part(part, self._scale, context.now_ns)
        self.part = self._scale[self.level] if self.level else 0.0
        return applied

    def changes(self, context: TickContext) -> Sequence[tuple[Place, KnobValue | None]]:
        """Return the values of this tick: none while the setting stays, except on resync."""
        level = self.level
        if level == self._written and not context.resync:
            return ()
        self._written = level
        values = []
        for target in context.knobs.targets(self.knob):
            if _is_ours(target, context):
                original = context.knobs.original(*target.place, self.knob)
                value = None if original is None or not level else self._value(original)
                values.append((target.place, value))
        return values

    def release(self) -> None:
        """Go to the free setting at once."""
        super().release()
        self._steps.release()

    @abstractmethod
    def _edges(self, limits: KnobLimits) -> Sequence[float]:
        """Return the largest part that each setting satisfies, from 0 (free) to 1 (strictest)."""

    @abstractmethod
    def _value(self, original: KnobValue) -> KnobValue:
        """Return the value of the setting in force for a target whose original is *original*."""


def _is_ours(target: Target, context: TickContext) -> bool:
    # Groups and links belong to best-effort as a whole. A cgroup belongs to a workload, whose class
    # may have changed.
    is_cgroup = target.kind is TargetKind.CGROUP
    return not is_cgroup or target.place in context.workload_index.best_effort


class IoWeightRung(SteppedRung):
    """Halves best-effort's weight for the disks with every step, down to the floor."""

    def __init__(self) -> None:
        super().__init__(Knob.IO_WEIGHT)
        self._floor = 1.0

    def describe(self) -> str:
        """Return the part of the original weight that is left."""
        if not self.level:
            return "full io.weight"
        left = max(0.5**self.level, self._floor / _DEFAULT_WEIGHT)
        return f"io.weight at {left:.0%}"

    def _edges(self, limits: KnobLimits) -> Sequence[float]:
        self._floor = max(1.0, limits.floor)
        steps = max(1, math.ceil(math.log2(max(2.0, _DEFAULT_WEIGHT / self._floor))))
        return [number / steps for number in range(steps + 1)]

    def _value(self, original: KnobValue) -> KnobValue:
        halved = parse_weight(original) / 2**self.level
        return format_amount(max(self._floor, halved))


class CacheWaysRung(SteppedRung):
    """Takes cache ways from best-effort's group, highest first; services keep the whole cache."""

    def __init__(self, facts: ResctrlFacts) -> None:
        super().__init__(Knob.LLC_WAYS)
        self._facts = facts
        self._ways: tuple[int, ...] = ()

    def usable(self, context: TickContext) -> bool:
        """Return whether there is a group to move, and more than one cache way to divide."""
        return self._facts.llc_ways > 1 and super().usable(context)

    def describe(self) -> str:
        """Return the number of ways that best-effort may use."""
        return f"{self._ways[self.level]} cache ways" if self.level else "all cache ways"

    def _edges(self, limits: KnobLimits) -> Sequence[float]:
        most = self._facts.llc_ways
        fewest = max(1, self._facts.llc_min_ways, math.ceil(limits.floor))
        self._ways = tuple(range(most, fewest - 1, -1)) or (most,)
        return _geometric([ways / most for ways in self._ways])

    def _value(self, original: KnobValue) -> KnobValue:
        masks = parse_masks(original)
        ways = self._ways[self.level]
        return format_masks({domain: lowest_ways(mask, ways) for domain, mask in masks.items()})


class MbaCurve:
    """The part of the unthrottled bandwidth that each MBA value leaves, in (0, 1], as measured.

    Intel's percent scale throttles requests, and what that does to the bandwidth depends on the
    program: 50 % may leave nine tenths of it. So the bandwidth of best-effort is measured at each
    value in use. Values not used so far are interpolated. Without any measurement the percent scale
    is taken as it is.
    """

    def __init__(self, facts: ResctrlFacts) -> None:
        self._facts = facts
        # The unthrottled bandwidth of each user, and of all together.
        self._full: dict[Hashable, float] = {}
        self._learned: dict[int, float] = {}
        self._value: int | None = None
        self._since_ns = 0
        self._last_ns = 0
        self._wanted: float | None = None

    def update(self, value: int, rates: Mapping[Hashable, float], now_ns: int) -> None:
        """Take the bandwidth of each best-effort user at *value*, in bytes/s.

        Empty *rates*: not measured.
        """
        facts = self._facts
        if value != self._value:
            self._value, self._since_ns = value, now_ns
        dt_s, self._last_ns = (now_ns - self._last_ns) / 1e9, now_ns
        if now_ns - self._since_ns < PATIENCE_S * NS_PER_SEC:
            return
        keep = math.exp(-dt_s / _LESS_S)
        self._update_full(value, rates, keep)
        if facts.mba_unit is not MbaUnit.PERCENT or value >= facts.mba_max or not self._wanted:
            return
        part = min(1.0, max(_LEAST, sum(rates.values()) / self._wanted))
        if part >= _IDLE_PART * self.part_at(value):
            known = self._learned.get(value, part)
            self._learned[value] = max(part, part + keep * (known - part))

    def _update_full(self, value: int, rates: Mapping[Hashable, float], keep: float) -> None:
        """Update the unthrottled bandwidth of each user, which shows only at the largest value."""
        full: dict[Hashable, float] = {}
        for user, rate in rates.items():
            known = self._full.get(user)
            if value < self._facts.mba_max:
                full[user] = max(rate, rate / self.part_at(value) if known is None else known)
            else:
                full[user] = max(rate, rate + keep * ((known or 0.0) - rate))
        self._full = full
        self._wanted = sum(full.values()) or None

    def part_at(self, value: int) -> float:
        """Return the part of the bandwidth that *value* is expected to leave, in (0, 1]."""
        facts = self._facts
        if value >= facts.mba_max:
            return 1.0
        if facts.mba_unit is MbaUnit.PERCENT and self._learned:
            part = self._interpolate(value, facts.mba_max)
        elif facts.mba_unit is MbaUnit.PERCENT or self._wanted is None:
            part = value / facts.mba_max
        else:
            limit = value * _BYTES_PER_UNIT[facts.mba_unit] * max(1, len(facts.domains))
            part = min(1.0, limit / self._wanted)
        return max(_LEAST, part)

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


class MbaRung(SteppedRung):
    """Throttles the memory bandwidth of best-effort's group.

    The demand stands for a part of the bandwidth. ``MbaCurve`` gives the value that leaves this
    part, because half of the percent scale is not half of the bandwidth.
    """

    def __init__(self, facts: ResctrlFacts) -> None:
        super().__init__(Knob.MBA)
        self._facts = facts
        self._curve = MbaCurve(facts)
        self._values: tuple[int, ...] = ()

    def usable(self, context: TickContext) -> bool:
        """Return whether there is a group to move, and hardware that throttles."""
        return self._facts.mba_max > self._facts.mba_min and super().usable(context)

    def rescale(self, part: float, context: TickContext) -> float:
        """Learn from the bandwidth at the value in force, which may move *part* on the scale."""
        value = self._values[self.level] if self.level else self._facts.mba_max
        self._curve.update(value, context.usage.bandwidth.rates, context.now_ns)
        return super().rescale(part, context)

    def describe(self) -> str:
        """Return best-effort's memory bandwidth in the unit of the hardware."""
        if not self.level:
            return "full memory bandwidth"
        unit = {MbaUnit.PERCENT: "%", MbaUnit.ABSOLUTE: "/8 GB/s", MbaUnit.MBPS: " MB/s"}
        return f"memory bandwidth {self._values[self.level]}{unit[self._facts.mba_unit]}"

    def _edges(self, limits: KnobLimits) -> Sequence[float]:
        facts, part_at = self._facts, self._curve.part_at
        is_percent = facts.mba_unit is MbaUnit.PERCENT
        values = (
            value
            for value in _grid(facts.mba_min, facts.mba_max, facts.mba_step)
            if (value / 100 if is_percent else part_at(value)) >= limits.floor
        )
        self._values = tuple(values) or (facts.mba_max,)
        return _geometric([part_at(value) for value in self._values])

    def _value(self, original: KnobValue) -> KnobValue:
        value = self._values[self.level]
        domains = parse_bandwidth(original)
        return format_bandwidth({domain: min(value, most) for domain, most in domains.items()})


def _grid(least: int, most: int, step: int) -> list[int]:
    """Return the values from *most* down to *least*: all, or ``_MOST_SETTINGS`` of them."""
    if (most - least) // step < _MOST_SETTINGS:
        return list(range(most, least - 1, -step))
    ratio = math.pow(least / most, 1 / _MOST_SETTINGS)
    values = (most * math.pow(ratio, number) for number in range(_MOST_SETTINGS + 1))
    whole = (max(least, round(value / step) * step) for value in values)
    return [most, *(value for value in dict.fromkeys(whole) if value < most)]


def _geometric(parts: Sequence[float]) -> list[float]:
    """Return the demand that each setting satisfies; equal steps of demand are equal factors.

    *parts* is the part of the resource that each setting leaves, falling from (about) 1.
    """
    last = len(parts) - 1
    least = parts[-1]
    if last == 0 or least >= 1.0:
        return [number / max(1, last) for number in range(last + 1)]
    whole = math.log(least)
    return [0.0, *(min(1.0, max(0.0, math.log(part) / whole)) for part in parts[1:-1]), 1.0]
