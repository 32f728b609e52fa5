# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""io.weight: a cgroup's share of a disk that is busy (v2 only).

Canonical value: the default weight, 1 to 10,000. Weights of single devices, which others may
have set beside it, are neither read nor written. The file is iocost's: it counts on disks for
which ``io.cost.qos`` of the root says ``enable=1``.
"""

from typing import ClassVar, Literal

from actuators.base import RefusedError, Turn
from actuators.cgroup_knob import CgroupKnob, Step
from actuators.cgroupfs import Cgroup
from controller.model import Knob, KnobValue

__all__ = ("IoWeight",)


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

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: less first; the kernel does not care."""
        return Turn.TAKE if int(value) < int(previous) else Turn.GIVE
