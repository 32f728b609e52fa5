# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""memory.high: above how much memory a cgroup is throttled and reclaimed from (v2 only).

Canonical value: bytes, or ``max``. The kernel keeps whole pages and rounds down
(page_counter_memparse in mm/page_counter.c). v1 has memory.soft_limit_in_bytes, which acts
only when the whole machine is short of memory: no substitute.

Lowering it below the usage makes kernels before 6.16 reclaim in the writer's context, up to
16 rounds (memory_high_write in mm/memcontrol.c): lower it in small steps.

io.weight: a cgroup's share of a disk that is busy (v2 only).

Canonical value: the default weight, 1 to 10,000. Weights of single devices, which others may
have set beside it, are neither read nor written. The file is iocost's: it counts on disks for
which ``io.cost.qos`` of the root says ``enable=1``.

io.max: how much a cgroup may read from and write to each disk (v2 only).

Canonical value: ``MAJOR:MINOR KEY=LIMIT ...;...``, sorted by device, keys in the kernel's order
(rbps, wbps, riops, wiops) and only those that limit; ``max`` when nothing does. One write sets
one device, all four keys of it.
"""

import math
import os
from typing import ClassVar, Literal

from actuators.base import Phase, RefusedError
from actuators.file_knob import CgroupKnob, Step
from actuators.kernfs import Cgroup
from controller.core.knob_values import (
    IO_MAX_KINDS,
    disks_in,
    format_amount,
    format_disks,
    parse_amount,
    parse_disks,
    parse_weight,
)
from controller.core.model import Knob, KnobValue

__all__ = (
    "IoMax",
    "IoWeight",
    "MemoryHigh",
)

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
        parse_amount(value)
        return () if previous == value else (Step("memory.high", value, value),)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, or rounded down to a page."""
        want, got = parse_amount(expected), parse_amount(found)
        return want == got or (want < math.inf and want - want % _PAGE == got)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: less first; the kernel does not care."""
        now, goal = parse_amount(previous), parse_amount(value)
        return Phase.TIGHTEN if goal < now else Phase.LOOSEN


class IoWeight(CgroupKnob):
    """The actuator of ``Knob.IO_WEIGHT``."""

    knob = Knob.IO_WEIGHT
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v2": "io.weight"}

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the default weight of an open cgroup."""
        for line in cgroup.read("io.weight").splitlines():
            name, _, weight = line.partition(" ")
            if name == "default":
                return format_amount(int(weight))
        raise RefusedError(0, f"{cgroup.path}: io.weight has no default weight")

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: the one write from *previous* to *value*."""
        weight = parse_weight(value)
        return () if previous == value else (Step("io.weight", f"default {weight}", value),)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: less first; the kernel does not care."""
        less = parse_weight(value) < parse_weight(previous)
        return Phase.TIGHTEN if less else Phase.LOOSEN


class IoMax(CgroupKnob):
    """The actuator of ``Knob.IO_MAX``."""

    knob = Knob.IO_MAX
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v2": "io.max"}

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the limits of an open cgroup."""
        lines = cgroup.read("io.max").splitlines()
        return format_disks(parse_disks(KnobValue(";".join(lines) or "max")))

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: one write per device whose limits change."""
        now, goal = parse_disks(previous), parse_disks(value)
        steps = []
        for disk in disks_in((*now, *goal)):
            others = {key: limit for key, limit in now.items() if key[0] != disk}
            after = others | {key: limit for key, limit in goal.items() if key[0] == disk}
            if after == now:
                continue
            now = after
            words = " ".join(f"{kind}={goal.get((disk, kind), 'max')}" for kind in IO_MAX_KINDS)
            steps.append(Step("io.max", f"{disk} {words}", format_disks(now)))
        return tuple(steps)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: any time; nothing depends on it."""
        return Phase.ANY
