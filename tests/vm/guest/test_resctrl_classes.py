# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Classes in the resctrl of the kernel: fixed limits, tasks, CLOSIDs, other programs, restore."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from actuators.executor import Executor
from controller.config.sections.resctrl import ResctrlClass
from controller.core.model import Workload
from controller.host.facts import CgroupLayout
from controller.host.resctrl import RESCTRL_DIR, parse_schemata
from controller.probes.cgroup_moves import Move, Moves
from controller.reconcilers.resctrl.class_groups import ClassState
from controller.reconcilers.resctrl.control_group import ControlGroups
from tests.support.cgroups import remove_cgroup
from tests.vm.guest.resctrl import (
    CONFIG,
    GROUP,
    best_effort,
    group_of,
    groups,
    move,
    service,
    sleepers,
)

pytestmark = pytest.mark.vm

SECOND = 1_000_000_000
GOLD = ResctrlClass("gold", 0.5, 1, 1)
SILVER = ResctrlClass("silver", 0, 0.5, 0.45)
BRONZE = ResctrlClass("bronze", 0, 0.3, 0.3)
CLASSES = CONFIG._replace(classes=(GOLD, SILVER, BRONZE))


@pytest.fixture
def cgroups() -> Iterator[list[Path]]:
    with ExitStack() as stack:
        made = []
        for name in ("gold", "silver", "bronze", "batch"):
            cgroup = Path(f"/sys/fs/cgroup/sweetpoint-test-{name}")
            cgroup.mkdir()
            stack.callback(remove_cgroup, cgroup)
            made.append(cgroup)
        yield made


def four(cgroups: list[Path]) -> tuple[Workload, ...]:
    """Return a service of each class, and best-effort work."""
    *services, batch = cgroups
    names = ("gold", "silver", "bronze")
    found = (service(cgroup, name) for cgroup, name in zip(services, names, strict=True))
    return (*found, best_effort(batch))


def test_each_class_has_its_limits_and_its_tasks(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, cgroups: list[Path]
) -> None:
    before = groups()
    control = ControlGroups(CLASSES, agent, cgroup_layout)
    with sleepers(5) as pids:
        for pid, cgroup in zip(pids, cgroups, strict=False):
            move([pid], cgroup)
        control.set_workloads(four(cgroups))
        control.reconcile(0, None)
        wanted = ["sweetpoint-gold", "sweetpoint-silver", "sweetpoint-bronze", GROUP, "/"]
        assert [group_of(pid) for pid in pids] == wanted
        found = {name: parse_schemata(text) for name, text in groups().items()}
        assert found["sweetpoint-gold"] == {"MB": {0: "100"}, "L3": {0: "7c0"}}
        assert found["sweetpoint-silver"] == {"MB": {0: "50"}, "L3": {0: "03f"}}
        assert found["sweetpoint-bronze"] == {"MB": {0: "30"}, "L3": {0: "00f"}}
        states = [
            ClassState(name=name, present=True, tasks=1, problem="")
            for name in ("gold", "silver", "bronze")
        ]
        assert control.state.classes == tuple(states)
        # The planner never sees a class: it would move its limits.
        assert [target.path for target in control.targets(enforcing=True)] == [GROUP]
        held = {target.path for target in agent.held() if control.is_of_class(target)}
        assert held == set(wanted[:3])

        assert agent.restore_all().clean
        control.reset()
        assert {group_of(pid) for pid in pids} == {"/"}
    assert groups() == before


def test_a_task_that_changes_its_class_or_arrives_is_moved_at_once(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, cgroups: list[Path]
) -> None:
    control = ControlGroups(CLASSES, agent, cgroup_layout)
    gold, silver, _, batch = workloads = four(cgroups)
    nothing = Moves((), complete=True)
    control.set_workloads(workloads)
    control.reconcile(0, nothing)
    with sleepers(3) as (first, second, third):
        # Containers that are about to run, while a full scan rests.
        move([first], cgroups[0])
        move([second], cgroups[3])
        arrived = [Move(gold.cgroup, first, first, whole=False)]
        arrived.append(Move(batch.cgroup, second, second, whole=False))
        control.reconcile(SECOND // 5, nothing, arrived)
        assert (group_of(first), group_of(second)) == ("sweetpoint-gold", GROUP)
        # From a class to another one, from best-effort work into a class, and out of both.
        move([first], cgroups[1])
        move([second], cgroups[0])
        moves = (
            Move(silver.cgroup, first, first, whole=True),
            Move(gold.cgroup, second, second, whole=True),
        )
        control.reconcile(2 * SECOND // 5, Moves(moves, complete=True))
        assert (group_of(first), group_of(second)) == ("sweetpoint-silver", "sweetpoint-gold")
        assert (control.state.elsewhere, group_of(third)) == (0, "/")
        # A service that another profile puts into another class.
        control.set_workloads((gold._replace(resctrl_class="bronze"), *workloads[1:]))
        control.reconcile(3 * SECOND, nothing)
        assert group_of(second) == "sweetpoint-bronze"
        control.set_workloads((gold._replace(resctrl_class=""), *workloads[1:]))
        control.reconcile(5 * SECOND, nothing)
        assert group_of(second) == "/"
    assert agent.restore_all().clean


def test_twenty_workloads_of_three_classes_and_none(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, cgroups: list[Path]
) -> None:
    random = Random(7)
    control = ControlGroups(CLASSES, agent, cgroup_layout)
    names = ["gold", "silver", "bronze", ""]
    top = cgroups[0]
    made = [top / f"pod{number}" for number in range(20)]
    chosen = [random.choice(names) for _ in made]
    wanted = [f"sweetpoint-{name}" if name else "/" for name in chosen]
    with sleepers(20) as pids:
        known: list[Workload] = []
        for number, (pid, cgroup, name) in enumerate(zip(pids, made, chosen, strict=True)):
            cgroup.mkdir()
            move([pid], cgroup)
            known.append(service(cgroup, name))
            control.set_workloads(tuple(known))
            arrived = [Move(known[-1].cgroup, pid, pid, whole=False)]
            control.reconcile(number * SECOND // 10, Moves((), complete=True), arrived)
            # Before the task would run: nothing waits for a later scan.
            assert group_of(pid) == wanted[number]
        assert [group_of(pid) for pid in pids] == wanted
    assert {"gold", "silver", "bronze", ""} == set(chosen)
    assert agent.restore_all().clean


def test_a_class_without_a_closid_is_told_and_its_tasks_stay(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, cgroups: list[Path]
) -> None:
    counts = [resctrl / "info" / name / "num_closids" for name in ("L3", "MB")]
    # Less the root group and that of best-effort work.
    room = min(int(file.read_text()) for file in counts) - 2
    names = [f"c{number}" for number in range(room + 1)]
    config = CONFIG._replace(classes=tuple(ResctrlClass(name, 0, 1, 1) for name in names))
    control = ControlGroups(config, agent, cgroup_layout)
    made = [cgroups[0] / name for name in names]
    for cgroup in made:
        cgroup.mkdir()
    with sleepers(len(names)) as pids:
        for pid, cgroup in zip(pids, made, strict=True):
            move([pid], cgroup)
        services = [service(cgroup, cgroup.name) for cgroup in made]
        control.set_workloads((*services, best_effort(cgroups[3])))
        control.reconcile(0, None)
        inside = [f"sweetpoint-{name}" for name in names[:room]]
        assert [group_of(pid) for pid in pids] == [*inside, "/"]
        assert control.state.present
        *_, last = control.state.classes
        assert (last.name, last.present) == (names[-1], False)
        assert (
            last.problem
            == f"class {last.name}: this CPU has {room + 2} control groups, none is left"
        )
    assert agent.restore_all().clean


def test_limits_that_another_program_changes_are_written_three_times_more(
    resctrl: Path, agent: Executor, cgroup_layout: CgroupLayout, cgroups: list[Path]
) -> None:
    control = ControlGroups(CLASSES, agent, cgroup_layout)
    schemata = RESCTRL_DIR / "sweetpoint-silver/schemata"
    control.set_workloads(four(cgroups))
    repaired = 0
    for number in range(6):
        control.reconcile(number * 10 * SECOND, None)
        repaired += "03f" in schemata.read_text()
        schemata.write_text("L3:0=1\n")
    assert repaired == 4
    (problem,) = [each.problem for each in control.state.classes if each.name == "silver"]
    assert "changed the limits too often" in problem
    assert agent.restore_all().clean
