# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""memory.high: above how much memory a cgroup is throttled and reclaimed from (v2 only).

Canonical value: bytes, or ``max``. The kernel keeps whole pages and rounds down
(page_counter_memparse in mm/page_counter.c). v1 has memory.soft_limit_in_bytes, which acts
only when the whole machine is short of memory: no substitute.

Lowering it below the usage makes kernels before 6.16 reclaim in the writer's context, up to
16 rounds (memory_high_write in mm/memcontrol.c): lower it in small steps.
"""

import os
from typing import ClassVar, Literal

from actuators.base import Turn
from actuators.cgroup_knob import CgroupKnob, Step
from actuators.cgroupfs import Cgroup
from controller.model import Knob, KnobValue

__all__ = ("MemoryHigh",)

_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryHigh(CgroupKnob):
    """The actuator of ``Knob.MEMORY_HIGH``."""

    knob = Knob.MEMORY_HIGH
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v2": "memory.high"}

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the limit of an open cgroup."""
        return KnobValue(cgroup.read("memory.high"))

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: the one write from *previous* to *value*."""
        _bytes(value)
        return () if previous == value else (Step("memory.high", value, value),)

    def same(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, or rounded down to a page."""
        want, got = _bytes(expected), _bytes(found)
        return want == got or (want is not None and want - want % _PAGE == got)

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: less first; the kernel does not care."""
        now, goal = _bytes(previous), _bytes(value)
        less = goal is not None and (now is None or goal < now)
        return Turn.TAKE if less else Turn.GIVE


def _bytes(value: KnobValue) -> int | None:
    return None if value == "max" else int(value)
