# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""cpu.idle: whether a cgroup only runs when none of its siblings wants the CPU.

Canonical value: ``0 WEIGHT`` (normal; the weight is ``cpu.shares`` on v1, ``cpu.weight`` on
v2) or ``1`` (idle). The weight belongs to the value because the kernel forgets it: an idle
cgroup's weight is pinned (v1 reads 3, v2 reads 1), writing it is EINVAL, and going back to
normal leaves 1024 on v1 and 100 on v2 (measured on 6.18 and 6.12). Since Linux kernel commit
304000390f88 ("sched: Cgroup SCHED_IDLE support") (in v5.15).
"""

from typing import ClassVar, Literal

from actuators.base import Turn
from actuators.cgroup_knob import CgroupKnob, Step
from actuators.cgroupfs import Cgroup
from controller.model import Knob, KnobValue

__all__ = ("CpuIdle",)

_IDLE = KnobValue("1")
_WEIGHT_FILE = {"v1": "cpu.shares", "v2": "cpu.weight"}
_WEIGHT_AFTER_IDLE = {"v1": 1024, "v2": 100}
# The v1 kernel clamps (MIN_SHARES, MAX_SHARES); the v2 kernel refuses what is out of range.
_SHARES_MIN, _SHARES_MAX = 2, 262_144


class CpuIdle(CgroupKnob):
    """The actuator of ``Knob.SCHED_IDLE``."""

    knob = Knob.SCHED_IDLE
    files: ClassVar[dict[Literal["v1", "v2"], str]] = {"v1": "cpu.idle", "v2": "cpu.idle"}

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return idle state and weight of an open cgroup."""
        if int(cgroup.read("cpu.idle")):
            return _IDLE
        return _normal(int(cgroup.read(_WEIGHT_FILE[self.version])))

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: the writes from *previous* to *value*."""
        now, goal = _weight(previous), _weight(value)
        if goal is None:
            return () if now is None else (Step("cpu.idle", "1", _IDLE),)
        steps: list[Step] = []
        if now is None:
            now = _WEIGHT_AFTER_IDLE[self.version]
            steps.append(Step("cpu.idle", "0", _normal(now)))
        if self.version == "v1":
            goal = min(max(goal, _SHARES_MIN), _SHARES_MAX)
        if now != goal:
            steps.append(Step(_WEIGHT_FILE[self.version], str(goal), _normal(goal)))
        return tuple(steps)

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: less weight first; the kernel does not care."""
        less = (_weight(value) or 0) < (_weight(previous) or 0)
        return Turn.TAKE if less else Turn.GIVE


def _normal(weight: int) -> KnobValue:
    return KnobValue(f"0 {weight}")


def _weight(value: KnobValue) -> int | None:
    # The weight of a normal cgroup, None for an idle one.
    if value == _IDLE:
        return None
    idle, weight = value.split()
    if idle != "0":
        raise ValueError(f"{value!r} is not a value of cpu.idle")
    return int(weight)
