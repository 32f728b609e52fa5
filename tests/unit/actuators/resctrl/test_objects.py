# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Values and targets of resctrl groups and of the mount."""

from pathlib import Path
from typing import Literal

import pytest

from actuators.memory_io import IoMax, IoWeight, MemoryHigh
from actuators.resctrl.objects import (
    ABSENT,
    PRESENT,
    ResctrlMounter,
    control_groups,
    monitoring_groups,
)
from actuators.resctrl.schemata import ResctrlL3, ResctrlMb
from controller.core.model import Knob, KnobValue, Target, TargetKind

V2: Literal["v2"] = "v2"
CGROUP_KNOBS = tuple(
    actuator(Path("/nowhere"), V2, V2) for actuator in (MemoryHigh, IoWeight, IoMax)
)
GROUPS = control_groups()
RESCTRL_KNOBS = (GROUPS, monitoring_groups(), ResctrlMounter(), ResctrlMb(), ResctrlL3())


def group(path: str, inode: int = 0) -> Target:
    return Target(TargetKind.RESCTRL_GROUP, "/sys/fs/resctrl", inode, path)


def test_the_value_of_a_group_includes_its_inode() -> None:
    ours, foreign = KnobValue("present 7"), KnobValue("present 8")
    assert GROUPS.matches(PRESENT, ours)
    assert not GROUPS.matches(ours, foreign)
    assert not GROUPS.matches(PRESENT, ABSENT)
    assert not GROUPS.matches(ABSENT, ours)
    assert GROUPS.intermediate_values(ABSENT, ours) == (ABSENT, ours, ours)
    assert [s.text for s in GROUPS.steps(ours, ABSENT)] == ["rmdir"]
    with pytest.raises(ValueError, match="cannot turn"):
        GROUPS.steps(ours, foreign)


@pytest.mark.parametrize(
    ("path", "inode", "knobs"),
    [
        ("sweetpoint-best-effort", 0, {Knob.RESCTRL_GROUP}),
        ("sweetpoint-best-effort", 9, {Knob.MBA, Knob.LLC_WAYS}),
        ("mon_groups/sweetpoint-web", 0, {Knob.RESCTRL_MONITOR}),
        ("runtime/mon_groups/sweetpoint-web", 0, {Knob.RESCTRL_MONITOR}),
        ("mon_groups/sweetpoint-web", 9, set()),
        ("runtime", 9, {Knob.MBA, Knob.LLC_WAYS}),
        ("", 1, {Knob.MBA, Knob.LLC_WAYS}),
        ("", 0, {Knob.RESCTRL_MOUNT}),
        # Paths that must never be created or removed.
        ("runtime", 0, set()),
        ("mon_groups/theirs", 0, set()),
        ("info", 0, set()),
        ("../sweetpoint-x", 0, set()),
        ("sweetpoint-x/../../y", 0, set()),
    ],
)
def test_knobs_of_a_target(path: str, inode: int, knobs: set[Knob]) -> None:
    target = group(path, inode)
    assert {each.knob for each in RESCTRL_KNOBS if each.applies_to(target)} == knobs
    assert not any(each.applies_to(target) for each in CGROUP_KNOBS)


def test_a_group_of_another_name_is_refused_before_a_file_is_opened() -> None:
    with pytest.raises(ValueError, match="not the path of a group of ours"):
        GROUPS.read(group("runtime"))
