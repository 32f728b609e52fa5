# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""io.max: how much a cgroup may read from and write to each disk (v2 only).

Canonical value: ``MAJOR:MINOR KEY=LIMIT ...;...``, sorted by device, keys in the kernel's order
(rbps, wbps, riops, wiops) and only those that limit; ``max`` when nothing does. One write sets
one device, all four keys of it.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from actuators.base import Turn
from actuators.cgroup_knob import CgroupKnob, Step
from actuators.cgroupfs import Cgroup
from controller.model import Knob, KnobValue

__all__ = ("IoMax",)

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

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: any time; nothing depends on it."""
        return Turn.FREE


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
