# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""resctrl.mount: the resctrl file system, mounted by us where the configuration says so.

Values: ``absent``, ``mounted``, and ``shared`` once it holds groups of others. Unmounting drops
every group there is, so what others use by now is theirs and stays.
"""

import ctypes
import errno
import os
from pathlib import Path
from typing import ClassVar

from actuators.base import Turn
from actuators.kernfs import Directory, classified
from actuators.resctrlfs import PREFIX
from actuators.step_knob import Step, StepKnob
from controller.host import mounts
from controller.model import Knob, KnobValue, Target, TargetKind

__all__ = ("MOUNTED", "NOT_MOUNTED", "MountPoint", "ResctrlMounter")

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

    def concerns(self, target: Target) -> bool:
        """Pure: the root group's path, without an id."""
        return target.kind is TargetKind.RESCTRL_GROUP and target.id == 0 and target.path == ""

    def supported(self) -> str | None:
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

    def take(self, place: MountPoint, step: Step) -> None:
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

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: mounted before there are groups, unmounted after."""
        return Turn.MAKE if value == MOUNTED else Turn.REMOVE


def _has_others(point: Path) -> bool:
    groups = [path for path in point.iterdir() if (path / "tasks").is_file()]
    monitored = [path for group in (point, *groups) for path in group.glob("mon_groups/*")]
    return any(not path.name.startswith(PREFIX) for path in (*groups, *monitored))
