# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What knobs in cgroup files have in common: where the hierarchy is, and who has the files."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, Literal

from actuators.cgroupfs import Cgroup
from actuators.step_knob import Step, StepKnob
from controller.model import KnobValue, Target, TargetKind

__all__ = ("CgroupKnob", "Step")

# What every cgroup with the controller has, whatever the kernel was built with.
_ALWAYS = {"cpu": "cpu.weight", "io": "io.stat", "memory": "memory.current"}


class CgroupKnob(StepKnob[Cgroup]):
    """Base of the actuators for cgroup files; implements ``base.Actuator``.

    :param mount: where the hierarchy with the cpu controller is mounted.
    :param hierarchy: its name in ``Target.scope``.
    :param version: which files it has.
    """

    # Files that tell, per version, whether the kernel has the knob.
    files: ClassVar[dict[Literal["v1", "v2"], str]]

    def __init__(self, mount: Path, hierarchy: str, version: Literal["v1", "v2"]) -> None:
        self.mount = mount
        self.hierarchy = hierarchy
        self.version = version

    @abstractmethod
    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the knob's value in an open cgroup; errors as ``Cgroup.read``."""

    def concerns(self, target: Target) -> bool:
        """Pure: every cgroup."""
        return target.kind is TargetKind.CGROUP

    def open(self, target: Target) -> Cgroup:
        """Return the open cgroup.

        :raises ValueError: it is in another hierarchy.
        """
        if target.scope != self.hierarchy:
            raise ValueError(f"{target.path}: hierarchy {target.scope}, not {self.hierarchy}")
        return Cgroup(self.mount, target)

    def supported(self) -> str | None:
        """Return why this host does not have the knob, or ``None``.

        On v2 the root has no such files: any first-level cgroup that has the controller is
        asked, and where there is none yet the kernel gets the benefit of the doubt.
        """
        name = self.files.get(self.version)
        if name is None:
            return f"{self.files['v2']} exists on cgroup v2 only"
        if self.version == "v1":
            missing = not (self.mount / name).exists()
        else:
            controller = name.partition(".")[0]
            if controller not in (self.mount / "cgroup.controllers").read_text().split():
                return f"the {controller} controller is not in {self.mount}"
            has_controller = _ALWAYS[controller]
            children = [p for p in self.mount.iterdir() if (p / has_controller).exists()]
            missing = bool(children) and not any((p / name).exists() for p in children)
        return f"this kernel has no {name} in {self.mount}" if missing else None
