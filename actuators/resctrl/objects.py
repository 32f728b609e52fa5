# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuators of resctrl objects: the mount (resctrl.mount) and groups (resctrl.group, .monitor).

These knobs are structural: other knobs or tasks are in these objects. An object is created before
its use and removed after it; undoing the knob removes the object.

Values of a group: ``absent``, ``present`` and, as read back, ``present INODE``. The id of the
target is 0, because a group is addressed by its name. The inode number in the value distinguishes
our group from one that another program created later with the same name. Removing a control group
also removes its settings, and its tasks return to the root group. Groups are scarce: a control
group needs a CLOSID and, on hardware with monitoring, every group needs an RMID. When there is
none left the kernel refuses with ENOSPC and "Out of CLOSIDs" or "Out of RMIDs".

Values of the mount: ``absent``, ``mounted``, and ``shared`` when other programs have groups in it.
Unmounting removes all groups, so a shared mount counts as foreign and is not unmounted.
"""

import ctypes
import errno
import os
from pathlib import Path
import re
from typing import ClassVar

from actuators.base import Phase
from actuators.file_knob import Step, StepKnob
from actuators.kernfs import Directory, classified
from actuators.resctrl.fs import PREFIX, GroupPath
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.facts import libc, mounts
from controller.host.resctrl import find_mount

__all__ = (
    "ABSENT",
    "MOUNTED",
    "NOT_MOUNTED",
    "PRESENT",
    "MountPoint",
    "ResctrlGroup",
    "ResctrlMounter",
    "control_groups",
    "monitoring_groups",
)

ABSENT = KnobValue("absent")
PRESENT = KnobValue("present")

_NAME = re.escape(PREFIX) + r"[A-Za-z0-9._-]+"


class ResctrlGroup(StepKnob[GroupPath]):
    """The actuator of a kind of groups.

    :param knob: the knob of this kind.
    :param pattern: regular expression for the paths of our groups of this kind.
    :param info: directories below ``info/``; the hardware supports such groups if one exists.
    """

    def __init__(self, knob: Knob, pattern: str, info: tuple[str, ...]) -> None:
        self.knob = knob
        self._pattern = re.compile(pattern)
        self._info = info

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is the path of a group of ours, without an id."""
        return (
            target.kind is TargetKind.RESCTRL_GROUP
            and target.id == 0
            and self._pattern.fullmatch(target.path) is not None
        )

    def unsupported_reason(self) -> str | None:
        """Return why this host has no such groups at present, or ``None``."""
        mount = find_mount()
        if mount is None:
            return "resctrl is not mounted"
        if any((mount.point / "info" / name).is_dir() for name in self._info):
            return None
        return f"this hardware has none of {', '.join(self._info)} in {mount.point}/info"

    def open(self, target: Target) -> GroupPath:
        """Return the open path of the group.

        :raises ValueError: the path is not that of a group of ours.
        """
        if not self.applies_to(target):
            raise ValueError(f"{target.path}: not the path of a group of ours")
        return GroupPath(target)

    def read_from(self, path: GroupPath) -> KnobValue:
        """Return whether the group exists, with its inode number."""
        inode = path.group_inode()
        return ABSENT if inode is None else KnobValue(f"{PRESENT} {inode}")

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return the step that creates or removes the group.

        :raises ValueError: *value* is no value of this knob, or that of another existing group.
        """
        if self.matches(value, previous):
            return ()
        if value == ABSENT:
            return (Step("group", "rmdir", ABSENT),)
        if previous != ABSENT or value.partition(" ")[0] != PRESENT:
            raise ValueError(f"cannot turn {previous!r} into {value!r}")
        return (Step("group", "mkdir", value),)

    def write_step(self, path: GroupPath, step: Step) -> None:
        """Create or remove the group; errors as ``GroupPath``."""
        if step.state == ABSENT:
            path.remove()
        else:
            path.create()

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: return whether the values are equal; ``present`` matches any inode number."""
        return expected == found or (expected == PRESENT and found != ABSENT)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: created before the knobs in it are written, removed after them."""
        return Phase.DELETE if value == ABSENT else Phase.CREATE


def control_groups() -> ResctrlGroup:
    """Return the actuator of ``Knob.RESCTRL_GROUP``."""
    return ResctrlGroup(Knob.RESCTRL_GROUP, _NAME, ("L3", "L3CODE", "MB"))


def monitoring_groups() -> ResctrlGroup:
    """Return the actuator of ``Knob.RESCTRL_MONITOR``: ``[GROUP/]mon_groups/NAME``."""
    pattern = rf"(?:[^/]+/)?mon_groups/{_NAME}"
    return ResctrlGroup(Knob.RESCTRL_MONITOR, pattern, ("L3_MON",))


NOT_MOUNTED = KnobValue("absent")
MOUNTED = KnobValue("mounted")
_SHARED = KnobValue("shared")

# include/uapi/linux/mount.h, include/linux/fs.h
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH = 2


class MountPoint(Directory):
    """The mount point of resctrl, as an open directory."""

    noun: ClassVar[str] = "mount point"
    permanent_file: ClassVar[str] = "."

    def __init__(self, target: Target) -> None:
        super().__init__(Path("/"), target.scope)
        self.point = Path(target.scope)


class ResctrlMounter(StepKnob[MountPoint]):
    """The actuator of ``Knob.RESCTRL_MOUNT``."""

    knob = Knob.RESCTRL_MOUNT

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is the root group, without an id."""
        return target.kind is TargetKind.RESCTRL_GROUP and target.id == 0 and target.path == ""

    def unsupported_reason(self) -> str | None:
        """Return why this kernel cannot mount resctrl, or ``None``."""
        known = Path("/proc/filesystems").read_text(encoding="ascii").split()
        return None if "resctrl" in known else "this kernel, or this CPU, has no resctrl"

    def open(self, target: Target) -> MountPoint:
        """Return the open mount point."""
        return MountPoint(target)

    def read_from(self, directory: MountPoint) -> KnobValue:
        """Return whether resctrl is mounted, and whether other programs have groups in it."""
        if not any(mount.point == directory.point for mount in mounts(None, {"resctrl"})):
            return NOT_MOUNTED
        return _SHARED if _has_foreign_groups(directory.point) else MOUNTED

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return the step that mounts or unmounts."""
        if previous == value:
            return ()
        return (Step(str(self.knob), "mount" if value == MOUNTED else "umount", value),)

    def write_step(self, directory: MountPoint, step: Step) -> None:
        """Mount or unmount.

        :raises RefusedError: the kernel refused.
        """
        point = os.fsencode(directory.point)
        if step.state == MOUNTED:
            flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            failed = libc().mount(b"resctrl", point, b"resctrl", flags, None)
        else:
            # Detached, because our own probe may have open files in it; the kernel removes the
            # groups when these are closed.
            failed = libc().umount2(point, _MNT_DETACH)
        if failed:
            code = ctypes.get_errno() or errno.EIO
            what = f"{directory.point}: cannot {step.text} resctrl"
            raise classified(OSError(code, os.strerror(code)), what)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: mounted before groups are created, unmounted after they are removed."""
        return Phase.CREATE if value == MOUNTED else Phase.DELETE


def _has_foreign_groups(point: Path) -> bool:
    groups = [path for path in point.iterdir() if (path / "tasks").is_file()]
    monitored = [path for group in (point, *groups) for path in group.glob("mon_groups/*")]
    return any(not path.name.startswith(PREFIX) for path in (*groups, *monitored))
