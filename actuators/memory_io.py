# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuators of the memory and io controllers: memory.high, memory.max, io.weight, io.max.

All but memory.max exist on cgroup v2 only.

memory.high is the usage above which a cgroup is throttled and its memory reclaimed. Canonical
value: bytes, or ``max``. The kernel stores whole pages and rounds down (page_counter_memparse in
mm/page_counter.c). memory.soft_limit_in_bytes of v1 is no substitute, because it acts only when
the whole machine is short of memory. Kernels before 6.16 reclaim in the writer's context, up to 16
rounds, when the limit is lowered below the usage (memory_high_write in mm/memcontrol.c): it has to
be lowered in small steps.

memory.max is the usage that a cgroup cannot exceed: beyond it the kernel reclaims, then kills a
process of the cgroup. The file of v1 is memory.limit_in_bytes, in a hierarchy of its own. Canonical
value: bytes, or ``max``. v1 refuses a limit below what it cannot reclaim with EBUSY
(mem_cgroup_resize_max in mm/memcontrol-v1.c). v2 accepts it and kills at once (memory_max_write in
mm/memcontrol.c). So a lower limit is not written there if it is below the usage of that moment.

io.weight is the share of a cgroup of a busy disk. Canonical value: the default weight, 1 to
10,000. Weights of single devices, which another program may have set, are neither read nor
written. The file belongs to iocost and has an effect on disks for which ``io.cost.qos`` of the
root has ``enable=1``.

io.max limits reads from and writes to each disk. Canonical value: ``MAJOR:MINOR KIND=LIMIT
...;...``, sorted by device, with only the kinds that have a limit, in the kernel's order (rbps,
wbps, riops, wiops); ``max`` for no limit at all. One write sets all four kinds of one device. When
a disk is removed, the kernel drops its limits, and refuses a write for it with ENODEV
(blkg_conf_open_bdev in block/blk-cgroup.c).
"""

import errno
import math
import os
from pathlib import Path
import re
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
from controller.host.memory import NO_LIMIT_V1_BYTES

__all__ = (
    "IoMax",
    "IoWeight",
    "MemoryHigh",
    "MemoryMax",
)

# A disk that was removed while it was in use is "(unknown)" until its last user has closed it
# (bdi_dev_name in mm/backing-dev.c). Its limits belong to no disk that can be named.
_DISK = re.compile(r"[0-9]+:[0-9]+ ")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _MemoryKnob(CgroupKnob):
    """Base of the limits of memory: one file with bytes, or no limit."""

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the limit of an open cgroup."""
        value = KnobValue(cgroup.read(self.files[self.version]))
        return KnobValue("max") if parse_amount(value) >= NO_LIMIT_V1_BYTES else value

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return the write from *previous* to *value*."""
        unlimited = parse_amount(value) == math.inf and self.version == "v1"
        text = "-1" if unlimited else value
        return () if previous == value else (Step(self.files[self.version], text, value),)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: return whether *found* is *expected*, possibly rounded down to a page."""
        want, got = parse_amount(expected), parse_amount(found)
        return want == got or (want < math.inf and want - want % _PAGE == got)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: lower values first; the kernel accepts any order."""
        now, goal = parse_amount(previous), parse_amount(value)
        return Phase.TIGHTEN if goal < now else Phase.LOOSEN


class MemoryHigh(_MemoryKnob):
    """The actuator of ``Knob.MEMORY_HIGH``."""

    knob = Knob.MEMORY_HIGH
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v2": "memory.high"}


class MemoryMax(_MemoryKnob):
    """The actuator of ``Knob.MEMORY_MAX``, in the hierarchy of the memory controller."""

    knob = Knob.MEMORY_MAX
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {
        "v1": "memory.limit_in_bytes",
        "v2": "memory.max",
    }

    def write_step(self, directory: Cgroup, step: Step) -> None:
        """Write the limit; one that would kill at once is refused as v1 does, with EBUSY.

        The usage may still grow between the reading and the write: callers leave room for that.
        """
        if self.version == "v2" and step.state != "max":
            used = int(directory.read("memory.current"))
            limit = parse_amount(self.read_from(directory))
            if int(step.state) < min(used, limit):
                text = f"{directory.path}: memory.max {step.state} is below the usage, {used}"
                raise RefusedError(errno.EBUSY, text)
        super().write_step(directory, step)


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
        """Pure: return the write from *previous* to *value*."""
        weight = parse_weight(value)
        return () if previous == value else (Step("io.weight", f"default {weight}", value),)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: lower values first; the kernel accepts any order."""
        less = parse_weight(value) < parse_weight(previous)
        return Phase.TIGHTEN if less else Phase.LOOSEN


class IoMax(CgroupKnob):
    """The actuator of ``Knob.IO_MAX``."""

    knob = Knob.IO_MAX
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v2": "io.max"}
    # Has an entry for each block device, by its numbers.
    devices = Path("/sys/dev/block")

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the limits of all disks of an open cgroup."""
        lines = [line for line in cgroup.read("io.max").splitlines() if _DISK.match(line)]
        return format_disks(parse_disks(KnobValue(";".join(lines) or "max")))

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return one write for each device whose limits change."""
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
        """Pure: at any time; the kernel accepts any order."""
        return Phase.ANY

    def write_step(self, directory: Cgroup, step: Step) -> None:
        """Write the limits of one disk; a disk that was removed has none, and is left out."""
        try:
            super().write_step(directory, step)
        except RefusedError as error:
            if error.errno != errno.ENODEV or self._exists(step.text.partition(" ")[0]):
                raise

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Return whether *found* is *expected*, possibly without disks that were removed since.

        Accesses files only if the texts differ.
        """
        if expected == found:
            return True
        limits = parse_disks(expected)
        removed = {disk for disk in disks_in(limits) if not self._exists(disk)}
        left = {key: limit for key, limit in limits.items() if key[0] not in removed}
        return bool(removed) and left == parse_disks(found)

    def _exists(self, disk: str) -> bool:
        return (self.devices / disk).exists()
