# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The oom_score_adj of best-effort processes: raised, inherited, and given back."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
import errno
from pathlib import Path
import subprocess
import sys
from typing import cast

import pytest

from actuators.base import RestoreReport
from actuators.executor import Executor
from actuators.journal import Journal, JournalError
from actuators.oom_order import HIGHEST, OOM, OWN, OomOrder
from controller.core.decision import Failure
from controller.core.model import CgroupId, Knob, QosClass, Target, Workload
from controller.demo.grower import Grower
from controller.host.facts import CgroupLayout
from controller.reconcilers.oom_order import OomReconciler
from tests.kernel.agent import AgentRun, Site
from tests.kernel.knobs import action, make_child, target_of
from tests.kernel.memory_node import memory_node
from tests.kernel.scored import ORIGINALS, Scored, score
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

RAISED = 1000
FIRST_STEPS = ("before journal write", "after journal rename", "after values stored")
LAST_STEPS = ("after processes raised", "after values given back", "before journal remove")


class Broken(Exception):
    """The process ends here."""


class Host:
    """An executor with the actuator, as a process has them; *trace* as of ``base.Trace``."""

    def __init__(self, layout: CgroupLayout, home: Path, stop_at: str = "") -> None:
        def trace(step: str) -> None:
            if step == stop_at:
                raise Broken(step)

        self.actuator = OomOrder(layout, home)
        self.executor = Executor(Journal(home / "journal", trace), [self.actuator], trace)

    def hold(self, target: Target) -> None:
        """Raise the processes of a cgroup."""
        self.actuator.look(target, 100)
        (outcome,) = self.executor.execute(
            [action(target, Knob.OOM_SCORE_ADJ, OWN, HIGHEST)], now_ns=0
        )
        assert (outcome.failure, outcome.applied) == (None, HIGHEST)

    def look(self, target: Target) -> None:
        """Raise the processes of a held cgroup that came since."""
        self.actuator.look(target, 100)
        if self.actuator.lacks(target):
            self.actuator.raise_seen(target)


@pytest.fixture
def processes(pod: Path) -> Iterator[list[Scored]]:
    found = [Scored(each, pod) for each in ORIGINALS]
    yield found
    for each in found:
        each.end()


@pytest.fixture
def target(cgroup_layout: CgroupLayout, pod: Path) -> Target:
    return oom_target(cgroup_layout, pod)


def oom_target(layout: CgroupLayout, cgroup: Path) -> Target:
    return target_of(layout, cgroup)._replace(scope=OOM)


def values(processes: list[Scored]) -> tuple[int, ...]:
    return tuple(each.value for each in processes)


def restore(layout: CgroupLayout, home: Path) -> RestoreReport:
    """Restore as another process does, which knows the files only; nothing is left of them."""
    report = Host(layout, home).executor.restore_all()
    assert report.clean
    assert [*home.glob("oom/*"), *home.glob("journal/*")] == []
    return report


def test_each_process_is_raised_and_gets_back_what_it_had(
    cgroup_layout: CgroupLayout, target: Target, processes: list[Scored], tmp_path: Path
) -> None:
    Host(cgroup_layout, tmp_path).hold(target)
    assert values(processes) == (RAISED,) * 3
    # Nobody has seen these.
    children = [each.fork() for each in processes]
    assert [score(each) for each in children] == [RAISED] * 3
    restore(cgroup_layout, tmp_path)
    assert values(processes) == ORIGINALS
    assert tuple(map(score, children)) == ORIGINALS


def test_a_child_that_had_more_than_its_parent_gets_that_back(
    cgroup_layout: CgroupLayout, target: Target, processes: list[Scored], tmp_path: Path
) -> None:
    """As a browser and its renderers; the largest value of the cgroup is that of the children."""
    children = [each.fork() for each in processes]
    for child in children:
        Path(f"/proc/{child}/oom_score_adj").write_text("600")
    Host(cgroup_layout, tmp_path).hold(target)
    assert {*values(processes), *map(score, children)} == {RAISED}
    restore(cgroup_layout, tmp_path)
    assert values(processes) == ORIGINALS
    assert [*map(score, children)] == [600] * 3


def test_what_a_process_sets_itself_stays(
    cgroup_layout: CgroupLayout,
    pod: Path,
    target: Target,
    processes: list[Scored],
    tmp_path: Path,
) -> None:
    last = Scored(RAISED, pod)
    processes.append(last)
    host = Host(cgroup_layout, tmp_path)
    host.hold(target)
    # Below what it had before, which the kernel allows unless our write raised the least value.
    processes[1].change(ORIGINALS[1])
    host.look(target)
    assert values(processes) == (RAISED, ORIGINALS[1], RAISED, RAISED)
    processes[0].change(500)
    child = last.fork()
    restore(cgroup_layout, tmp_path)
    assert values(processes) == (500, *ORIGINALS[1:], RAISED)
    assert score(child) == RAISED, "no process ends up below what it had"


def test_processes_that_come_are_raised_and_those_that_leave_get_their_value_back(
    cgroup_layout: CgroupLayout,
    cgroup_root: Path,
    pod: Path,
    target: Target,
    processes: list[Scored],
    tmp_path: Path,
) -> None:
    elsewhere = make_child(cgroup_root, "elsewhere")
    host = Host(cgroup_layout, tmp_path)
    host.hold(target)
    new = Scored(250, elsewhere)
    processes.append(new)
    host.look(target)
    assert new.value == 250
    new.move(pod)
    host.look(target)
    assert new.value == RAISED
    processes[0].move(elsewhere)
    host.look(target)
    assert processes[0].value == ORIGINALS[0]
    # Of these two it is known from the record only: moved, and no look since.
    processes[2].move(elsewhere)
    new.move(elsewhere)
    restore(cgroup_layout, tmp_path)
    assert values(processes) == (*ORIGINALS, 250)


def test_a_process_that_a_runtime_prepares_is_raised_at_the_look_after(
    cgroup_layout: CgroupLayout,
    target: Target,
    processes: list[Scored],
    tmp_path: Path,
) -> None:
    host = Host(cgroup_layout, tmp_path)
    for each, name in zip(processes, ("runc:[2:INIT]", "init", "runc:[2:INIT]"), strict=True):
        each.rename(name)
    host.hold(target)
    assert values(processes) == (ORIGINALS[0], RAISED, ORIGINALS[2])
    # What it has when it runs; the other one keeps its name.
    processes[0].change(250)
    processes[0].rename("job")
    host.look(target)
    assert values(processes) == (RAISED,) * 3
    restore(cgroup_layout, tmp_path)
    assert values(processes) == (250, *ORIGINALS[1:])


def test_nothing_is_left_of_a_cgroup_that_is_gone(
    cgroup_layout: CgroupLayout,
    pod: Path,
    target: Target,
    processes: list[Scored],
    tmp_path: Path,
) -> None:
    host = Host(cgroup_layout, tmp_path)
    host.hold(target)
    for each in processes:
        each.end()
    eventually("an empty cgroup", lambda: not (pod / "cgroup.procs").read_text())
    pod.rmdir()
    (outcome,) = host.executor.execute([action(target, Knob.OOM_SCORE_ADJ, HIGHEST, OWN)], now_ns=0)
    assert outcome.failure is Failure.GONE
    restore(cgroup_layout, tmp_path)


@pytest.mark.parametrize("raised", [True, False])
def test_the_kernel_ends_best_effort_work_before_a_larger_service(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path, raised: bool
) -> None:
    host = Host(cgroup_layout, tmp_path)
    with memory_node(cgroup_layout, cgroup_root, tmp_path) as node, ExitStack() as stack:

        def start(name: str, score: int, mib: int) -> Grower:
            grower = Grower(score, (node.root / name, node.memory / name))
            stack.callback(grower.end)
            grower.grow(mib, 0)
            eventually(name, lambda: grower.held_mib == mib)
            return grower

        web, job = start("web", 300, 150), start("batch/one", 200, 60)
        other = Scored(17, node.root / "batch/two")
        stack.callback(other.end)
        if raised:
            for name in ("one", "two"):
                host.hold(oom_target(cgroup_layout, node.root / "batch" / name))
        # Beside the job it is too much for the limit of 300 MiB, without it not.
        web.grow(260, 0)
        eventually("an end", lambda: job.code is not None or web.code is not None)
        if raised:
            eventually("all that it wanted", lambda: web.held_mib == 260 or web.code is not None)
        assert (web.code, job.code) == ((None, -9) if raised else (-9, None))
        restore(cgroup_layout, tmp_path)
        assert other.value == 17


@pytest.mark.parametrize("step", [*FIRST_STEPS, *LAST_STEPS])
def test_a_process_that_dies_at_any_step_leaves_what_can_be_restored(
    cgroup_layout: CgroupLayout,
    target: Target,
    processes: list[Scored],
    tmp_path: Path,
    step: str,
) -> None:
    host = Host(cgroup_layout, tmp_path, step)
    with pytest.raises(Broken):
        host.hold(target)
        host.executor.execute([action(target, Knob.OOM_SCORE_ADJ, HIGHEST, OWN)], now_ns=0)
    restore(cgroup_layout, tmp_path)
    assert values(processes) == ORIGINALS


def workload(layout: CgroupLayout, cgroup: Path, qos: QosClass) -> Workload:
    target = target_of(layout, cgroup)
    identity = CgroupId(target.scope, target.id)
    return Workload(cgroup.name, identity, target.path, qos, cgroup.name, "default")


def test_only_best_effort_work_is_raised_some_processes_per_tick(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    names = ("web", "one", "two")
    cgroups = [make_child(cgroup_root, name) for name in names]
    processes = [Scored(value, each) for value, each in zip((7, 17, 400), cgroups, strict=True)]
    web, one, two = (
        workload(cgroup_layout, each, QosClass.LS if each.name == "web" else QosClass.BE)
        for each in cgroups
    )
    host = Host(cgroup_layout, tmp_path)
    reconciler = OomReconciler(host.executor, host.actuator)
    try:
        reconciler.reconfigure(True)
        reconciler.set_workloads([web, one, two])
        reconciler.reconcile(0, None)
        assert values(processes) == (7, RAISED, RAISED)
        assert reconciler.state == (2, 2, 0)
        # A paused one is no best-effort workload for the time.
        reconciler.set_workloads([web, one._replace(qos=QosClass.SYSTEM), two])
        reconciler.reconcile(1, None)
        assert values(processes) == (7, 17, RAISED)
        reconciler.set_workloads([web, one, two])
        reconciler.reconcile(2, None)
        assert values(processes) == (7, RAISED, RAISED)
        # As after a restart of the container: another process, no child of a raised one.
        processes.append(Scored(300, cgroups[1]))
        for now_ns in range(0, 12 * 10**9, 10**9):
            reconciler.reconcile(now_ns, None)
        assert processes[-1].value == RAISED
        reconciler.reconfigure(False)
        reconciler.reconcile(12 * 10**9, None)
        assert values(processes) == (7, 17, 400, 300)
        assert reconciler.state.workloads == 0
        assert host.executor.held() == ()
    finally:
        for each in processes:
            each.end()


def test_nothing_is_kept_of_a_workload_that_went(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    one = make_child(cgroup_root, "one")
    host = Host(cgroup_layout, tmp_path)
    reconciler = OomReconciler(host.executor, host.actuator)
    # Raised by kubelet already: so it is looked at, and not held.
    process = Scored(RAISED, one)
    try:
        reconciler.reconfigure(True)
        reconciler.set_workloads([workload(cgroup_layout, one, QosClass.BE)])
        reconciler.reconcile(0, None)
        kept = host.actuator._seen, host.actuator._pending
        assert all(kept) and not reconciler.state.workloads
        reconciler.set_workloads([])
        assert not any((*kept, host.actuator._prepared, host.actuator._never))
    finally:
        process.end()


class Crowded:
    """An actuator whose workload 1 always has more processes than one look takes."""

    raised = failed = 0

    def __init__(self) -> None:
        self.looks: Counter[int] = Counter()

    def look(self, target: Target, most: int) -> int:
        self.looks[target.id] += 1
        return most if target.id == 1 else 0

    def lacks(self, target: Target) -> bool:
        return False

    def holds(self, target: Target) -> bool:
        return False


def test_a_workload_with_ever_new_processes_hides_no_other(
    cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    crowded = Crowded()
    reconciler = OomReconciler(Host(cgroup_layout, tmp_path).executor, cast(OomOrder, crowded))
    reconciler.reconfigure(True)
    reconciler.set_workloads(
        Workload(f"j{number}", CgroupId("v2", number), f"/{number}", QosClass.BE, "j", "")
        for number in range(1, 9)
    )
    for second_s in range(60):
        reconciler.reconcile(second_s * 10**9, None)
    assert min(crowded.looks.values()) >= 5, "fewer than a look in two rounds"


def test_cgroups_that_used_no_cpu_are_looked_at_in_a_whole_round(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    one, two = (make_child(cgroup_root, name) for name in ("one", "two"))
    host = Host(cgroup_layout, tmp_path)
    processes: list[Scored] = []
    reconciler = OomReconciler(host.executor, host.actuator)
    first, second = (workload(cgroup_layout, each, QosClass.BE) for each in (one, two))
    try:
        reconciler.reconfigure(True)
        reconciler.set_workloads([first, second])
        for second_s in range(6):  # the first look at each, and a whole round
            reconciler.reconcile(second_s * 10**9, ())
        processes += Scored(17, one), Scored(400, two)
        reconciler.reconcile(6 * 10**9, [first.cgroup])
        for second_s in range(7, 600):
            reconciler.reconcile(second_s * 10**9, ())
        assert values(processes) == (RAISED, 400)
        for second_s in range(600, 612):
            reconciler.reconcile(second_s * 10**9, ())
        assert values(processes) == (RAISED, RAISED)
        reconciler.reconfigure(False)
        reconciler.reconcile(612 * 10**9, ())
        assert values(processes) == (17, 400)
    finally:
        for each in processes:
            each.end()


def test_a_look_that_failed_comes_again_in_the_next_round(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_child(cgroup_root, "one")
    host = Host(cgroup_layout, tmp_path)
    reconciler = OomReconciler(host.executor, host.actuator)
    job = workload(cgroup_layout, one, QosClass.BE)
    process = None
    try:
        reconciler.reconfigure(True)
        reconciler.set_workloads([job])
        for second_s in range(6):
            reconciler.reconcile(second_s * 10**9, ())
        process = Scored(17, one)
        with monkeypatch.context() as broken:
            broken.setattr(OomOrder, "_store", no_space)
            reconciler.reconcile(6 * 10**9, [job.cgroup])
            for second_s in range(7, 12):
                reconciler.reconcile(second_s * 10**9, ())
            assert process.value == 17
        for second_s in range(12, 24):
            reconciler.reconcile(second_s * 10**9, ())
        assert process.value == RAISED
        reconciler.reconfigure(False)
        reconciler.reconcile(24 * 10**9, ())
        assert process.value == 17
    finally:
        if process is not None:
            process.end()


def no_space(*_: object) -> None:
    raise JournalError(OSError(errno.ENOSPC, "no space"), "cannot write", "make room")


@pytest.mark.thorough
def test_the_agent_raises_and_every_end_of_it_gives_back(site: Site) -> None:
    processes = [Scored(17, site.batch[0]), Scored(400, site.batch[1]), Scored(7, site.service)]
    before = values(processes)
    release = (sys.executable, "-m", "controller.cli.main", "release")

    def are_raised() -> bool:
        return values(processes) == (RAISED, RAISED, 7)

    try:
        with AgentRun(site).ready() as agent:
            eventually("raised", are_raised)
            processes.append(Scored(300, site.batch[0]))
            eventually("raised as well", lambda: processes[-1].value == RAISED)
            raised = "sweetpoint_oom_processes_total"
            eventually("the count of it", lambda: agent.series(raised).get(("raised",)) == 3)
            agent.kill_both()
            assert values(processes) == (RAISED, RAISED, 7, RAISED)
        state = ("--state-dir", str(site.home / "state"))
        subprocess.run((*release, *state), check=True, stdout=subprocess.DEVNULL)
        assert values(processes) == (*before, 300)
        processes.pop().end()
        with AgentRun(site).ready() as agent:
            eventually("raised", are_raised)
            site.write("memory: {guard: false}\n")
            agent.kill_agent()
            eventually("given back by the guardian", lambda: values(processes) == before)
        site.write()
        with AgentRun(site).ready():
            eventually("raised", are_raised)
        assert values(processes) == before
    finally:
        for each in processes:
            each.end()
