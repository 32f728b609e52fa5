# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The actuator of io.cost.qos: whether the kernel divides the time of a disk by io.weight.

The file exists in the root cgroup only, so a line of it concerns the whole host. It has a line
``MAJOR:MINOR enable=0|1 ctrl=auto|user ...`` for each disk of which it was ever written (iocost in
block/blk-iocost.c, since v5.4). A disk without a line is off with the kernel's own parameters.

Canonical value: ``enable=E ctrl=auto``, or with ``ctrl=user`` all words of the line, in the
kernel's order. With ``ctrl=auto`` the kernel changes the parameters by itself, so they are left
out. A parameter in a write sets ``ctrl=user`` (ioc_qos_write), so none is written with ``auto``.
While iocost is on, the kernel's default throttling of writeback (wbt) is off for the disk.
"""

from pathlib import Path
from typing import ClassVar

from actuators.base import GoneError, Phase
from actuators.file_knob import Step, StepKnob
from actuators.kernfs import Directory
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.disks import COST_FILE
from controller.host.facts import CgroupLayout

__all__ = ("COST_OFF", "COST_ON", "CostedDisk", "IoCost", "cost_target")

COST_OFF = KnobValue("enable=0 ctrl=auto")
COST_ON = KnobValue("enable=1 ctrl=auto")
_MINOR_BITS = 20  # MINORBITS in include/linux/kdev_t.h


def cost_target(disk: str) -> Target:
    """Return the line of *disk* (``MAJOR:MINOR``) as a target; ``id`` is the device number."""
    major, minor = map(int, disk.split(":"))
    return Target(TargetKind.DISK, "v2", major << _MINOR_BITS | minor, disk)


class CostedDisk(Directory):
    """The root cgroup, for the line of one disk.

    :raises GoneError: there is no such disk.
    """

    noun: ClassVar[str] = "root cgroup for the disk"
    permanent_file: ClassVar[str] = "cgroup.procs"

    def __init__(self, mount: Path, disk: str, devices: Path) -> None:
        if not (devices / disk).exists():
            raise GoneError(f"no disk {disk}")
        super().__init__(mount, "")
        self.path = disk

    def line(self) -> str:
        """Return the words about the disk, empty: there is no line; errors as ``read``."""
        for line in self.read(COST_FILE).splitlines():
            name, _, words = line.partition(" ")
            if name == self.path:
                return words
        return ""


class IoCost(StepKnob[CostedDisk]):
    """The actuator of ``Knob.IO_COST``."""

    knob = Knob.IO_COST
    # Has an entry for each block device, by its numbers.
    devices = Path("/sys/dev/block")

    def __init__(self, layout: CgroupLayout) -> None:
        self._mount, self._version = layout.mount, layout.version

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is a disk."""
        return target.kind is TargetKind.DISK

    def unsupported_reason(self) -> str | None:
        """Return why this host has no iocost, or ``None``."""
        if self._version == "v1":
            return f"{COST_FILE} exists on cgroup v2 only"
        if (self._mount / COST_FILE).exists():
            return None
        return f"this kernel, or {self._mount}, has no {COST_FILE}"

    def open(self, target: Target) -> CostedDisk:
        """Return the open root cgroup; errors as ``CostedDisk``."""
        return CostedDisk(self._mount, target.path, self.devices)

    def read_from(self, directory: CostedDisk) -> KnobValue:
        """Return the state of the disk; no line means that it is off."""
        words = directory.line().split()
        if not words:
            return COST_OFF
        fields = dict(word.split("=", 1) for word in words)
        if fields.get("enable") not in ("0", "1") or fields.get("ctrl") not in ("auto", "user"):
            raise ValueError(f"{COST_FILE} has {' '.join(words)!r}")
        return KnobValue(" ".join(words[:2] if fields["ctrl"] == "auto" else words))

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return the write from *previous* to *value*."""
        return () if previous == value else (Step(COST_FILE, value, value),)

    def write_step(self, directory: CostedDisk, step: Step) -> None:
        """Write the line of the disk; errors as ``Directory.write``."""
        directory.write(step.file, f"{directory.path} {step.text}")

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: at any time; the kernel accepts any order."""
        return Phase.ANY
