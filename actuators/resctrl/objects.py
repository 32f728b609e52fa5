# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""resctrl.group and resctrl.monitor: groups of our own, made before use and removed after.

Values: ``absent``, ``present`` and, as read back, ``present INODE``. The target's id is 0: a
group's name is its address, and the inode number in the value tells ours from one that
somebody else made under that name later. What is set in a control group goes with it, and its
tasks fall back to the root group.

There are few groups: a control group takes one of the CLOSIDs, and where the hardware can
monitor, every group also one of the RMIDs. The kernel then refuses with ENOSPC and "Out of
CLOSIDs" or "Out of RMIDs".

resctrl.mount: the resctrl file system, mounted by us where the configuration says so.

Values: ``absent``, ``mounted``, and ``shared`` once it holds groups of others. Unmounting drops
every group there is, so what others use by now is theirs and stays.
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
from controller.host.facts import mounts
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
    """The actuator of groups whose path has the form *pattern*.

    :param info: below ``info/``: what the hardware must have for such groups.
    """

    def __init__(self, knob: Knob, pattern: str, info: tuple[str, ...]) -> None:
        self.knob = knob
        self._pattern = re.compile(pattern)
        self._info = info

    def applies_to(self, target: Target) -> bool:
        """Pure: paths of the form of ours, without an id."""
        return (
            target.kind is TargetKind.RESCTRL_GROUP
            and target.id == 0
            and self._pattern.fullmatch(target.path) is not None
        )

    def unsupported_reason(self) -> str | None:
        """Return why this host does not have such groups now, or ``None``."""
        mount = find_mount()
        if mount is None:
            return "resctrl is not mounted"
        if any((mount.point / "info" / name).is_dir() for name in self._info):
            return None
        return f"this hardware has none of {', '.join(self._info)} in {mount.point}/info"

    def open(self, target: Target) -> GroupPath:
        """Return the place of the group.

        :raises ValueError: it is not to be a group of ours.
        """
        if not self.applies_to(target):
            raise ValueError(f"{target.path}: not the path of a group of ours")
        return GroupPath(target)

    def read_from(self, place: GroupPath) -> KnobValue:
        """Return whether the group is there, and which one it is."""
        inode = place.found()
        return ABSENT if inode is None else KnobValue(f"{PRESENT} {inode}")

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: one step, to make or to remove the group.

        :raises ValueError: no value of this knob, or a group is to become another one.
        """
        if self.matches(value, previous):
            return ()
        if value == ABSENT:
            return (Step("group", "rmdir", ABSENT),)
        if previous != ABSENT or value.partition(" ")[0] != PRESENT:
            raise ValueError(f"cannot turn {previous!r} into {value!r}")
        return (Step("group", "mkdir", value),)

    def write_step(self, place: GroupPath, step: Step) -> None:
        """Make or remove the group."""
        if step.state == ABSENT:
            place.remove()
        else:
            place.make()

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, or there, where it was not known yet which one it would be."""
        return expected == found or (expected == PRESENT and found != ABSENT)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: made before what is set in it, removed after."""
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
    """The directory to mount on."""

    noun: ClassVar[str] = "mount point"
    always: ClassVar[str] = "."

    def __init__(self, target: Target) -> None:
        super().__init__(Path("/"), target.scope)
        self.point = Path(target.scope)


class ResctrlMounter(StepKnob[MountPoint]):
    """The actuator of ``Knob.RESCTRL_MOUNT``."""

    knob = Knob.RESCTRL_MOUNT

    def applies_to(self, target: Target) -> bool:
        """Pure: the root group's path, without an id."""
        return target.kind is TargetKind.RESCTRL_GROUP and target.id == 0 and target.path == ""

    def unsupported_reason(self) -> str | None:
        """Return why this kernel cannot mount it, or ``None``."""
        known = Path("/proc/filesystems").read_text(encoding="ascii").split()
        return None if "resctrl" in known else "this kernel, or this CPU, has no resctrl"

    def open(self, target: Target) -> MountPoint:
        """Return the directory to mount on."""
        return MountPoint(target)

    def read_from(self, place: MountPoint) -> KnobValue:
        """Return whether it is mounted, and whether others have groups there."""
        if not any(mount.point == place.point for mount in mounts(None, {"resctrl"})):
            return NOT_MOUNTED
        return _SHARED if _has_others(place.point) else MOUNTED

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: one step, to mount or to unmount."""
        if previous == value:
            return ()
        return (Step(str(self.knob), "mount" if value == MOUNTED else "umount", value),)

    def write_step(self, place: MountPoint, step: Step) -> None:
        """Mount or unmount.

        :raises RefusedError: the kernel does not.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        point = os.fsencode(place.point)
        if step.state == MOUNTED:
            flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            failed = libc.mount(b"resctrl", point, b"resctrl", flags, None)
        else:
            # Our own probe may still have files open there; the groups go when it closes them.
            failed = libc.umount2(point, _MNT_DETACH)
        if failed:
            code = ctypes.get_errno() or errno.EIO
            what = f"{place.point}: cannot {step.text} resctrl"
            raise classified(OSError(code, os.strerror(code)), what)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: mounted before there are groups, unmounted after."""
        return Phase.CREATE if value == MOUNTED else Phase.DELETE


def _has_others(point: Path) -> bool:
    groups = [path for path in point.iterdir() if (path / "tasks").is_file()]
    monitored = [path for group in (point, *groups) for path in group.glob("mon_groups/*")]
    return any(not path.name.startswith(PREFIX) for path in (*groups, *monitored))
