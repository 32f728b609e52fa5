# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The rungs of the cache channel that resctrl offers: cache ways, then memory bandwidth.

Both act on the group that best-effort's tasks are in; every domain gets the same.
"""

from collections.abc import Sequence
import math

from controller.control.bandwidth import BandwidthScale
from controller.control.ladder import Scene
from controller.control.schemata import (
    format_bandwidth,
    format_masks,
    lowest_ways,
    parse_bandwidth,
    parse_masks,
)
from controller.control.stepped import SteppedRung
from controller.model import Knob, KnobValue
from controller.settings import KnobLimits, MbaUnit
from controller.units import NS_PER_SEC

__all__ = ("MbaRung", "WaysRung")

_HOLD_NS = 20 * NS_PER_SEC
# An absolute scale may have thousands of values: so many of them, in equal factors, are enough.
_MOST_SETTINGS = 24


class WaysRung(SteppedRung):
    """Takes cache ways from best-effort's group, from the top; services keep the whole cache."""

    def __init__(self) -> None:
        super().__init__(Knob.LLC_WAYS, _HOLD_NS)
        self._ways: tuple[int, ...] = ()

    def usable(self, scene: Scene) -> bool:
        """Return whether there is a group, and a cache whose ways can be counted."""
        facts = scene.host.resctrl
        return facts is not None and facts.llc_ways > 1 and super().usable(scene)

    def describe(self) -> str:
        """Return how many ways best-effort has."""
        return f"{self._ways[self.level]} cache ways" if self.level else "all cache ways"

    def _edges(self, limits: KnobLimits, scene: Scene) -> Sequence[float]:
        facts = scene.host.resctrl
        assert facts is not None
        fewest = max(1, facts.llc_min_ways, math.ceil(limits.floor))
        self._ways = tuple(range(facts.llc_ways, fewest - 1, -1)) or (facts.llc_ways,)
        return _geometric([ways / facts.llc_ways for ways in self._ways])

    def _value(self, original: KnobValue) -> KnobValue:
        masks = parse_masks(original)
        ways = self._ways[self.level]
        return format_masks({domain: lowest_ways(mask, ways) for domain, mask in masks.items()})


class MbaRung(SteppedRung):
    """Throttles the memory bandwidth of best-effort's group.

    The demand asks for a part of the bandwidth; which value brings that is ``BandwidthScale``'s
    to know, because half of the percent scale is not half of the bandwidth.
    """

    def __init__(self) -> None:
        super().__init__(Knob.MBA, _HOLD_NS)
        self._bandwidth = BandwidthScale()
        self._values: tuple[int, ...] = ()
        self._unit = MbaUnit.PERCENT

    def usable(self, scene: Scene) -> bool:
        """Return whether there is a group, and hardware that throttles."""
        facts = scene.host.resctrl
        return facts is not None and facts.mba_max > facts.mba_min and super().usable(scene)

    def rescale(self, part: float, limits: KnobLimits, scene: Scene) -> float:
        """Learn what the value in force brings: *part* may then be elsewhere."""
        facts = scene.host.resctrl
        assert facts is not None
        value = self._values[self.level] if self.level else facts.mba_max
        self._bandwidth.learn(value, facts, scene.usage.bandwidth.rates, scene.now_ns)
        return super().rescale(part, limits, scene)

    def describe(self) -> str:
        """Return best-effort's memory bandwidth as it was set."""
        if not self.level:
            return "full memory bandwidth"
        unit = {MbaUnit.PERCENT: "%", MbaUnit.ABSOLUTE: "/8 GB/s", MbaUnit.MBPS: " MB/s"}
        return f"memory bandwidth {self._values[self.level]}{unit[self._unit]}"

    def _edges(self, limits: KnobLimits, scene: Scene) -> Sequence[float]:
        facts = scene.host.resctrl
        assert facts is not None
        self._unit = facts.mba_unit
        values = _grid(facts.mba_min, facts.mba_max, facts.mba_step)
        if facts.mba_unit is MbaUnit.PERCENT:
            least = 100 * limits.floor
            self._values = tuple(value for value in values if value >= least)
        else:
            self._values = tuple(
                value for value in values if self._bandwidth.part_at(value) >= limits.floor
            )
        self._values = self._values or (facts.mba_max,)
        return _geometric([self._bandwidth.part_at(value) for value in self._values])

    def _value(self, original: KnobValue) -> KnobValue:
        value = self._values[self.level]
        domains = parse_bandwidth(original)
        return format_bandwidth({domain: min(value, most) for domain, most in domains.items()})


def _grid(least: int, most: int, step: int) -> list[int]:
    """Return the values from *most* down to *least*: all, or as many as are worth having."""
    if (most - least) // step < _MOST_SETTINGS:
        return list(range(most, least - 1, -step))
    ratio = math.pow(least / most, 1 / _MOST_SETTINGS)
    values = (most * math.pow(ratio, number) for number in range(_MOST_SETTINGS + 1))
    whole = (max(least, round(value / step) * step) for value in values)
    return [most, *(value for value in dict.fromkeys(whole) if value < most)]


def _geometric(parts: Sequence[float]) -> list[float]:
    """Return which demand each setting satisfies: equal steps of demand are equal factors.

    *parts* is what each setting leaves of the resource, falling from (about) 1.
    """
    last = len(parts) - 1
    least = parts[-1]
    if last == 0 or least >= 1.0:
        return [number / max(1, last) for number in range(last + 1)]
    whole = math.log(least)
    return [0.0, *(min(1.0, max(0.0, math.log(part) / whole)) for part in parts[1:-1]), 1.0]
