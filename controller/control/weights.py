# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The first rung of the io channel: best-effort's weight for the disks, halved step by step."""

from collections.abc import Sequence
import math

from controller.control.amounts import format_amount, parse_amount
from controller.control.ladder import Scene
from controller.control.stepped import SteppedRung
from controller.model import Knob, KnobValue
from controller.settings import KnobLimits
from controller.units import NS_PER_SEC

__all__ = ("WeightRung",)

_HOLD_NS = 20 * NS_PER_SEC
# io.weight of a cgroup that nobody touched (block/blk-cgroup.h, CGROUP_WEIGHT_DFL).
_DEFAULT_WEIGHT = 100.0


class WeightRung(SteppedRung):
    """Halves io.weight with every step, down to the floor."""

    def __init__(self) -> None:
        super().__init__(Knob.IO_WEIGHT, _HOLD_NS)
        self._floor = 1.0

    def describe(self) -> str:
        """Return the part of its weight that best-effort has."""
        if not self.level:
            return "full io.weight"
        left = max(0.5**self.level, self._floor / _DEFAULT_WEIGHT)
        return f"io.weight at {left:.0%}"

    def _edges(self, limits: KnobLimits, scene: Scene) -> Sequence[float]:
        self._floor = max(1.0, limits.floor)
        steps = max(1, math.ceil(math.log2(max(2.0, _DEFAULT_WEIGHT / self._floor))))
        return [number / steps for number in range(steps + 1)]

    def _value(self, original: KnobValue) -> KnobValue:
        halved = parse_amount(original) / 2**self.level
        return format_amount(max(self._floor, halved))
