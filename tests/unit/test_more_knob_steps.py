# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pure side of the knobs of memory, disks and resctrl, and of the objects they live in."""

from pathlib import Path
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
import pytest

from actuators.base import Phase
from actuators.memory_io import IoMax, IoWeight, MemoryHigh
from actuators.ordering import order_actions
from actuators.resctrl.objects import (
    ABSENT,
    PRESENT,
    ResctrlMounter,
    control_groups,
    monitoring_groups,
)
from actuators.resctrl.schemata import ResctrlL3, ResctrlMb
from controller.core.decision import Action
from controller.core.model import Knob, KnobValue, Target, TargetKind

V2: Literal["v2"] = "v2"
MEMORY = MemoryHigh(Path("/nowhere"), V2, V2)
WEIGHT = IoWeight(Path("/nowhere"), V2, V2)
DISKS = IoMax(Path("/nowhere"), V2, V2)
MB, L3 = ResctrlMb(), ResctrlL3()
GROUPS, MONITORS, MOUNTER = control_groups(), monitoring_groups(), ResctrlMounter()


def group(path: str, id_: int = 0) -> Target:
    return Target(TargetKind.RESCTRL_GROUP, "/sys/fs/resctrl", id_, path)


limits = st.dictionaries(
    st.sampled_from(["8:0", "8:16", "253:1"]),
    st.dictionaries(
        st.sampled_from(["rbps", "wbps", "riops", "wiops"]), st.integers(1, 10**12), min_size=1
    ),
)


def disks(value: dict[str, dict[str, int]]) -> KnobValue:
    # As the kernel shows it, canonical or not: every line has all four keys there.
    lines = [
        " ".join((disk, *(f"{key}={limit}" for key, limit in keys.items())))
        for disk, keys in value.items()
    ]
    return KnobValue(";".join(lines) or "max")


@given(before=limits, after=limits)
def test_each_disk_is_written_once_and_the_last_state_is_the_goal(
    before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]
) -> None:
    steps = DISKS.steps(disks(before), disks(after))
    changed = {d for d in before.keys() | after.keys() if before.get(d) != after.get(d)}
    assert sorted(step.text.split()[0] for step in steps) == sorted(changed)
    for step in steps:
        disk, *words = step.text.split()
        wanted = after.get(disk, {})
        assert dict(word.split("=") for word in words) == {
            key: str(wanted.get(key, "max")) for key in ("rbps", "wbps", "riops", "wiops")
        }
    if steps:
        assert DISKS.steps(steps[-1].state, disks(after)) == ()


def test_values_of_disks_are_canonical() -> None:
    (step,) = DISKS.steps(KnobValue("max"), KnobValue("8:16 wiops=9 rbps=1"))
    assert step.state == "8:16 rbps=1 wiops=9"
    with pytest.raises(ValueError, match="not a value"):
        DISKS.steps(KnobValue("max"), KnobValue("8:16 speed=9"))


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("4096", "4096", True),
        ("8191", "4096", True),
        ("8191", "8192", False),
        ("max", "max", True),
        ("max", "4096", False),
        ("4096", "max", False),
    ],
)
def test_memory_is_rounded_down_to_pages(expected: str, found: str, same: bool) -> None:
    assert MEMORY.matches(KnobValue(expected), KnobValue(found)) is same


def test_a_weight_is_the_default_one() -> None:
    (step,) = WEIGHT.steps(KnobValue("100"), KnobValue("7"))
    assert (step.file, step.text, step.state) == ("io.weight", "default 7", "7")


@pytest.mark.parametrize(
    ("knob", "value", "written"),
    [
        (MB, "1=20;0=100", "0=100;1=20"),
        (L3, "0=7FF;1=00f", "0=7ff;1=f"),
    ],
)
def test_schemata_are_written_in_canonical_form(
    knob: ResctrlMb | ResctrlL3, value: str, written: str
) -> None:
    (step,) = knob.steps(KnobValue("0=1;1=1"), KnobValue(value))
    assert (step.text, step.state) == (written, written)
    assert knob.steps(step.state, KnobValue(value)) == ()


def test_without_granularity_only_the_same_bandwidth_is_ours() -> None:
    assert MB.matches(KnobValue("0=20;1=30"), KnobValue("0=20;1=30"))
    assert not MB.matches(KnobValue("0=20"), KnobValue("0=21"))
    assert not MB.matches(KnobValue("0=20"), KnobValue("0=20;1=20"))


def test_which_group_it_is_is_part_of_the_value() -> None:
    ours, theirs = KnobValue("present 7"), KnobValue("present 8")
    assert GROUPS.matches(PRESENT, ours)
    assert not GROUPS.matches(ours, theirs)
    assert not GROUPS.matches(PRESENT, ABSENT)
    assert not GROUPS.matches(ABSENT, ours)
    assert GROUPS.intermediate_values(ABSENT, ours) == (ABSENT, ours, ours)
    assert [s.text for s in GROUPS.steps(ours, ABSENT)] == ["rmdir"]
    with pytest.raises(ValueError, match="cannot turn"):
        GROUPS.steps(ours, theirs)


@pytest.mark.parametrize(
    ("path", "id_", "knobs"),
    [
        ("sweetpoint-best-effort", 0, {Knob.RESCTRL_GROUP}),
        ("sweetpoint-best-effort", 9, {Knob.MBA, Knob.LLC_WAYS}),
        ("mon_groups/sweetpoint-web", 0, {Knob.RESCTRL_MONITOR}),
        ("runtime/mon_groups/sweetpoint-web", 0, {Knob.RESCTRL_MONITOR}),
        ("mon_groups/sweetpoint-web", 9, set()),
        ("runtime", 9, {Knob.MBA, Knob.LLC_WAYS}),
        ("", 1, {Knob.MBA, Knob.LLC_WAYS}),
        ("", 0, {Knob.RESCTRL_MOUNT}),
        # What must never be made or removed.
        ("runtime", 0, set()),
        ("mon_groups/theirs", 0, set()),
        ("info", 0, set()),
        ("../sweetpoint-x", 0, set()),
        ("sweetpoint-x/../../y", 0, set()),
    ],
)
def test_whose_target_it_is(path: str, id_: int, knobs: set[Knob]) -> None:
    actuators = (GROUPS, MONITORS, MOUNTER, MB, L3)
    assert {a.knob for a in actuators if a.applies_to(group(path, id_))} == knobs
    assert not any(a.applies_to(group(path, id_)) for a in (MEMORY, WEIGHT, DISKS))


def test_a_group_of_another_name_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ValueError, match="not the path of a group of ours"):
        GROUPS.read(group("runtime"))


def test_objects_are_made_before_and_removed_after_what_they_hold() -> None:
    def act(knob: Knob, target: Target, previous: str, value: str) -> Action:
        return Action(
            target=target,
            knob=knob,
            previous=KnobValue(previous),
            value=KnobValue(value),
            reason="test",
        )

    of_group = group("sweetpoint-be", 5)
    actuators = {a.knob: a for a in (GROUPS, MONITORS, MOUNTER, MB, L3)}
    undoing = [
        act(Knob.RESCTRL_MOUNT, group(""), "mounted", "absent"),
        act(Knob.RESCTRL_GROUP, group("sweetpoint-be"), "present 5", "absent"),
        act(
            Knob.RESCTRL_MONITOR,
            group("sweetpoint-be/mon_groups/sweetpoint-x"),
            "present 6",
            "absent",
        ),
        act(Knob.MBA, of_group, "0=20", "0=100"),
        act(Knob.LLC_WAYS, of_group, "0=ff", "0=f"),
    ]
    assert [a.knob for a in order_actions(undoing, actuators)] == [
        Knob.LLC_WAYS,
        Knob.MBA,
        Knob.RESCTRL_MONITOR,
        Knob.RESCTRL_GROUP,
        Knob.RESCTRL_MOUNT,
    ]
    doing = [act(a.knob, a.target, a.value, a.previous) for a in undoing]
    made = [a.knob for a in order_actions(doing, actuators)]
    assert made[:2] == [Knob.RESCTRL_MOUNT, Knob.RESCTRL_GROUP]
    assert made[2] is Knob.RESCTRL_MONITOR
    assert MB.phase(KnobValue("0=100"), KnobValue("0=20")) is Phase.TIGHTEN
