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

from collections.abc import Mapping
import os
from typing import ClassVar, Literal

from actuators.base import Phase, RefusedError
from actuators.file_knob import CgroupKnob, Step
from actuators.kernfs import Cgroup
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
        _bytes(value)
        return () if previous == value else (Step("memory.high", value, value),)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, or rounded down to a page."""
        want, got = _bytes(expected), _bytes(found)
        return want == got or (want is not None and want - want % _PAGE == got)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: less first; the kernel does not care."""
        now, goal = _bytes(previous), _bytes(value)
        less = goal is not None and (now is None or goal < now)
        return Phase.TIGHTEN if less else Phase.LOOSEN


def _bytes(value: KnobValue) -> int | None:
    return None if value == "max" else int(value)


class IoWeight(CgroupKnob):
    """The actuator of ``Knob.IO_WEIGHT``."""

    knob = Knob.IO_WEIGHT
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v2": "io.weight"}

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the default weight of an open cgroup."""
        for line in cgroup.read("io.weight").splitlines():
            name, _, weight = line.partition(" ")
            if name == "default":
                return KnobValue(str(int(weight)))
        raise RefusedError(0, f"{cgroup.path}: io.weight has no default weight")

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: the one write from *previous* to *value*."""
        weight = int(value)
        return () if previous == value else (Step("io.weight", f"default {weight}", value),)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: less first; the kernel does not care."""
        return Phase.TIGHTEN if int(value) < int(previous) else Phase.LOOSEN


_KEYS = ("rbps", "wbps", "riops", "wiops")

Device = tuple[int, int]
Limits = Mapping[str, int]


class IoMax(CgroupKnob):
    """The actuator of ``Knob.IO_MAX``."""

    knob = Knob.IO_MAX
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v2": "io.max"}

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the limits of an open cgroup."""
        return _text(_parse(";".join(cgroup.read("io.max").splitlines()) or "max"))

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: one write per device whose limits change."""
        now, goal = _parse(previous), _parse(value)
        steps = []
        for device in sorted(now.keys() | goal.keys()):
            limits = goal.get(device, {})
            if limits == now.get(device, {}):
                continue
            now = {**now, device: limits}
            words = " ".join(f"{key}={limits.get(key, 'max')}" for key in _KEYS)
            steps.append(Step("io.max", f"{device[0]}:{device[1]} {words}", _text(now)))
        return tuple(steps)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: any time; nothing depends on it."""
        return Phase.ANY


def _parse(value: str) -> dict[Device, Limits]:
    if value == "max":
        return {}
    found: dict[Device, Limits] = {}
    for line in value.split(";"):
        name, *words = line.split()
        major, minor = name.split(":")
        pairs = [word.split("=") for word in words]
        if any(key not in _KEYS for key, _ in pairs):
            raise ValueError(f"{value!r} is not a value of io.max")
        limits = {key: int(limit) for key, limit in pairs if limit != "max"}
        if limits:
            found[int(major), int(minor)] = limits
    return found


def _text(limits: Mapping[Device, Limits]) -> KnobValue:
    lines = []
    for (major, minor), of_device in sorted(limits.items()):
        if of_device:
            words = [f"{key}={of_device[key]}" for key in _KEYS if key in of_device]
            lines.append(" ".join((f"{major}:{minor}", *words)))
    return KnobValue(";".join(lines) or "max")
