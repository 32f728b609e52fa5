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
"""

import re

from actuators.base import Turn
from actuators.resctrlfs import PREFIX, Place
from actuators.step_knob import Step, StepKnob
from controller.model import Knob, KnobValue, Target, TargetKind
from controller.resctrl_info import find_mount

__all__ = ("ABSENT", "PRESENT", "ResctrlGroup", "control_groups", "monitoring_groups")

ABSENT = KnobValue("absent")
PRESENT = KnobValue("present")

_NAME = re.escape(PREFIX) + r"[A-Za-z0-9._-]+"


class ResctrlGroup(StepKnob[Place]):
    """The actuator of groups whose path has the form *pattern*.

    :param info: below ``info/``: what the hardware must have for such groups.
    """

    def __init__(self, knob: Knob, pattern: str, info: tuple[str, ...]) -> None:
        self.knob = knob
        self._pattern = re.compile(pattern)
        self._info = info

    def concerns(self, target: Target) -> bool:
        """Pure: paths of the form of ours, without an id."""
        return (
            target.kind is TargetKind.RESCTRL_GROUP
            and target.id == 0
            and self._pattern.fullmatch(target.path) is not None
        )

    def supported(self) -> str | None:
        """Return why this host does not have such groups now, or ``None``."""
        mount = find_mount()
        if mount is None:
            return "resctrl is not mounted"
        if any((mount.point / "info" / name).is_dir() for name in self._info):
            return None
        return f"this hardware has none of {', '.join(self._info)} in {mount.point}/info"

    def open(self, target: Target) -> Place:
        """Return the place of the group.

        :raises ValueError: it is not to be a group of ours.
        """
        if not self.concerns(target):
            raise ValueError(f"{target.path}: not the path of a group of ours")
        return Place(target)

    def read_from(self, place: Place) -> KnobValue:
        """Return whether the group is there, and which one it is."""
        inode = place.found()
        return ABSENT if inode is None else KnobValue(f"{PRESENT} {inode}")

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: one step, to make or to remove the group.

        :raises ValueError: no value of this knob, or a group is to become another one.
        """
        if self.same(value, previous):
            return ()
        if value == ABSENT:
            return (Step("group", "rmdir", ABSENT),)
        if previous != ABSENT or value.partition(" ")[0] != PRESENT:
            raise ValueError(f"cannot turn {previous!r} into {value!r}")
        return (Step("group", "mkdir", value),)

    def take(self, place: Place, step: Step) -> None:
        """Make or remove the group."""
        if step.state == ABSENT:
            place.remove()
        else:
            place.make()

    def same(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, or there, where it was not known yet which one it would be."""
        return expected == found or (expected == PRESENT and found != ABSENT)

    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: made before what is set in it, removed after."""
        return Turn.REMOVE if value == ABSENT else Turn.MAKE


def control_groups() -> ResctrlGroup:
    """Return the actuator of ``Knob.RESCTRL_GROUP``."""
    return ResctrlGroup(Knob.RESCTRL_GROUP, _NAME, ("L3", "L3CODE", "MB"))


def monitoring_groups() -> ResctrlGroup:
    """Return the actuator of ``Knob.RESCTRL_MONITOR``: ``[GROUP/]mon_groups/NAME``."""
    pattern = rf"(?:[^/]+/)?mon_groups/{_NAME}"
    return ResctrlGroup(Knob.RESCTRL_MONITOR, pattern, ("L3_MON",))
