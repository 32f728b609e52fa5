# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""cgroup.freeze, on v1 freezer.state: whether the tasks of a cgroup run at all.

Canonical value: ``0`` or ``1``. On v1 the freezer is a hierarchy of its own, so the target is the
cgroup there. Its scope is ``freezer`` on v2, too: nobody moves this knob but who evicts.

Freezing is asked for and takes a moment: v1 says FREEZING until then, v2 has what was written at
once (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst).
"""

from typing import ClassVar, Literal

from actuators.base import Turn
from actuators.cgroup_knob import CgroupKnob, Step
from actuators.cgroupfs import Cgroup
from controller.host import CgroupLayout, mounts
from controller.model import Knob, KnobValue, Target

__all__ = ("FREEZER", "CgroupFreeze", "freezers")

FREEZER = "freezer"
_FILES: dict[Literal["v1", "v2"], str] = {"v1": "freezer.state", "v2": "cgroup.freeze"}
_STATES = {"0": "THAWED", "1": "FROZEN"}


class CgroupFreeze(CgroupKnob):
    """The actuator of ``Knob.FREEZE``."""

    knob = Knob.FREEZE
    files: ClassVar[dict[Literal["v1", "v2"], str]] = _FILES

    def concerns(self, target: Target) -> bool:
        """Pure: the cgroups of its hierarchy."""
        return super().concerns(target) and target.scope == self.hierarchy

    def supported(self) -> str | None:
        """Return why this host does not have the knob, or ``None``; the root never has it."""
        name = _FILES[self.version]
        below = [path for path in self.mount.iterdir() if path.is_dir()]
        missing = bool(below) and not any((path / name).exists() for path in below)
        return f"this kernel has no {name} in {self.mount}" if missing else None

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return whether an open cgroup is frozen, or about to be."""
        return KnobValue("0" if cgroup.read(_FILES[self.version]) in ("0", "THAWED") else "1")

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: the one write from *previous* to *value*."""
        if value not in _STATES:
            raise ValueError(f"{value!r} is neither 0 nor 1")
        if previous == value:
            return ()
        text = value if self.version == "v2" else _STATES[value]
        return (Step(_FILES[self.version], text, value),)

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: at any time."""
        return Turn.FREE


def freezers(layout: CgroupLayout) -> tuple[CgroupFreeze, ...]:
    """Return the actuator for a host; none where a v1 host has no freezer hierarchy."""
    if layout.version == "v2":
        return (CgroupFreeze(layout.mount, FREEZER, "v2"),)
    found = [mount for mount in mounts(None, {"cgroup"}) if FREEZER in mount.options]
    return tuple(CgroupFreeze(mount.point, FREEZER, "v1") for mount in found[:1])
