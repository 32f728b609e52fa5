# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cookies on real processes, with the system call played: see ``tests.cookie_kernel``."""

from collections.abc import Callable, Iterator
import errno
import os
from pathlib import Path
import subprocess
import threading
import time

import pytest

from actuators.core_scheduling import prctl
from actuators.core_scheduling.cookie import BEST_EFFORT, CoreCookie, core_group
from actuators.core_scheduling.job import erase, reconcile
from actuators.core_scheduling.registry import CookieRegistry
from actuators.executor import Executor, restore_leftovers
from actuators.journal import Journal
from controller.core.decision import Action, Failure, Outcome
from controller.core.model import CgroupId, Knob, KnobValue, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.probes.cgroup_moves import Move, Moves
from controller.reconcilers.core_scheduling import CookieReconciler
from tests.cookie_kernel import CookieKernel

FOREIGN = 0xF00
NOTHING = Moves((), complete=True)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> CookieKernel:
    kernel = CookieKernel()
    monkeypatch.setattr(prctl, "_prctl", kernel.prctl)
    return kernel


@pytest.fixture
def task() -> Iterator[Callable[[], int]]:
    """Return a function that makes a sleeping process and returns its id."""
    made: list[subprocess.Popen[bytes]] = []

    def make() -> int:
        made.append(subprocess.Popen(["sleep", "60"]))
        return made[-1].pid

    yield make
    for process in made:
        process.kill()
        process.wait()


@pytest.fixture
def registry(tmp_path: Path) -> CookieRegistry:
    registry = CookieRegistry(tmp_path / "cookies")
    registry.add_group("a")
    registry.add_group("b")
    return registry


Task = Callable[[], int]


class TestReconcile:
    """The helper's job, done in this process, which carries cookies meanwhile."""

    @pytest.fixture(autouse=True)
    def clean(self, kernel: CookieKernel) -> Iterator[None]:
        yield
        kernel.cookies[threading.get_native_id()] = 0

    def test_gives_one_cookie_per_group(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        one, two, other = task(), task(), task()
        report = reconcile(registry, lambda: {one: "a", two: "a", other: "b"})
        assert (report.given, report.carrying, report.problem) == (3, 3, "")
        assert kernel.cookies[one] == kernel.cookies[two] != kernel.cookies[other]
        assert registry.cookies == {kernel.cookies[one]: "a", kernel.cookies[other]: "b"}

    def test_a_cookie_is_in_the_book_before_a_task_has_it(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task, tmp_path: Path
    ) -> None:
        pid = task()

        def look(_task: int) -> None:
            on_disk = CookieRegistry(tmp_path / "cookies").cookies
            assert kernel.cookies[threading.get_native_id()] in on_disk

        kernel.on_giving = look
        assert reconcile(registry, lambda: {pid: "a"}).given == 1

    def test_a_later_task_gets_the_cookie_of_the_first(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        first, later = task(), task()
        known = reconcile(registry, lambda: {first: "a"}).carriers
        report = reconcile(registry, lambda: {later: "a"}, carriers=known, may_create=False)
        assert report.given == 1
        assert kernel.cookies[first] == kernel.cookies[later]

    def test_without_anybody_who_carries_it_none_is_made(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        pid, stranger = task(), task()
        kernel.cookies[stranger] = FOREIGN
        report = reconcile(
            registry, lambda: {pid: "a"}, carriers={"a": [stranger]}, may_create=False
        )
        assert report.uncarried
        assert kernel.cookies[pid] == 0

    def test_leaves_foreign_cookies_alone(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        mine, theirs, elsewhere = task(), task(), task()
        kernel.cookies[theirs] = kernel.cookies[elsewhere] = FOREIGN
        report = reconcile(registry, lambda: {mine: "a", theirs: "a", elsewhere: ""})
        assert (report.given, report.foreign, report.cleared) == (1, 1, 0)
        assert kernel.cookies[theirs] == kernel.cookies[elsewhere] == FOREIGN

    def test_clears_who_left_and_changes_who_went_to_another_group(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        stays, left, changed = task(), task(), task()
        reconcile(registry, lambda: dict.fromkeys((stays, left, changed), "a"))
        report = reconcile(registry, lambda: {stays: "a", left: "", changed: "b"})
        assert (report.cleared, report.given) == (1, 1)
        assert kernel.cookies[left] == 0
        assert registry.cookies[kernel.cookies[changed]] == "b"
        assert registry.cookies[kernel.cookies[stays]] == "a"

    def test_spares_the_agent_kernel_threads_and_the_dead(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        agent, dead = task(), 4_000_000
        kthreadd = 2
        wanted = dict.fromkeys((agent, dead, kthreadd), "a")
        report = reconcile(registry, lambda: wanted, excluded=frozenset([agent]))
        assert (report.given, report.problem) == (0, "")
        assert kernel.cookies[agent] == kernel.cookies[kthreadd] == 0

    def test_tells_what_the_kernel_refuses(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        allowed, guarded = task(), task()
        kernel.on_giving = lambda _task: kernel.errors.update({guarded: errno.EPERM})
        report = reconcile(registry, lambda: {allowed: "a", guarded: "a"})
        assert (report.given, report.failed) == (1, 1)
        assert f"task {guarded}" in report.problem

    def test_erase_clears_ours_everywhere_and_nothing_else(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        ours, of_other_group, theirs = task(), task(), task()
        reconcile(registry, lambda: {ours: "a", of_other_group: "b"})
        kernel.cookies[theirs] = FOREIGN
        kernel.cookies[threading.get_native_id()] = 0
        report = erase({kernel.cookies[ours]: "a"})
        assert (report.cleared, report.problem) == (1, "")
        assert kernel.cookies[ours] == 0
        assert kernel.cookies[of_other_group]
        assert kernel.cookies[theirs] == FOREIGN


class Host:
    """A tree of directories with ``tasks`` files, the knob on it, and its keeper."""

    def __init__(self, mount: Path, state_dir: Path) -> None:
        self.layout = CgroupLayout(hierarchy="cpu", mount=mount, version="v1", unified=None)
        self.state_dir = state_dir
        self.actuator = CoreCookie(state_dir)
        self.executor = Executor(Journal(state_dir / "journal"), [self.actuator])
        self.keeper = CookieReconciler(self.layout, self.actuator)
        self.now_ns = 0

    def workload(self, name: str, *pids: int, group: str = "") -> Workload:
        folder = self.layout.mount / name
        folder.mkdir(exist_ok=True)
        (folder / "tasks").write_text("\n".join(map(str, pids)))
        cgroup = CgroupId("cpu", folder.stat().st_ino)
        return Workload(name, cgroup, f"/{name}", QosClass.BE, name, "", group)

    def write(self, value: str, group: str = BEST_EFFORT) -> Outcome:
        target = core_group(group)
        before = self.actuator.read(target)
        action = Action(
            target=target,
            knob=Knob.CORE_COOKIE,
            previous=before,
            value=KnobValue(value),
            reason="test",
        )
        return self.executor.execute([action], now_ns=self.now_ns)[0]

    def ticks(self, moves: Moves | None = NOTHING, seconds: int = 2) -> None:
        """Tick once a second with *moves* in the first; helpers get the time that they need."""
        for _ in range(seconds):
            self.now_ns += NS_PER_SEC
            self.keeper.reconcile(self.now_ns, moves)
            moves = NOTHING if moves is not None else None
            while self.actuator.busy and self.actuator._helper is not None:
                time.sleep(0.002)
                if _ended(self.actuator._helper._pid):
                    break
        self.keeper.reconcile(self.now_ns, moves)


def _ended(pid: int | None) -> bool:
    return pid is None or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


@pytest.fixture
def host(tmp_path: Path, kernel: CookieKernel) -> Host:
    mount = tmp_path / "cpu"
    mount.mkdir()
    return Host(mount, tmp_path / "state")


def test_an_order_reaches_the_members_and_taking_it_back_clears_all(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    pids = [task(), task()]
    host.keeper.set_workloads([host.workload("batch", *pids)])
    host.ticks()
    assert not any(kernel.cookies[pid] for pid in pids)
    assert host.write(BEST_EFFORT).applied == BEST_EFFORT
    host.ticks()
    assert len({kernel.cookies[pid] for pid in pids}) == 1
    assert kernel.cookies[pids[0]]
    assert host.keeper.state.carrying == 2
    assert kernel.cookies[os.getpid()] == 0
    assert host.write("0").applied == "0"
    assert not any(kernel.cookies[pid] for pid in pids)
    assert not host.actuator.registry.groups
    host.ticks()
    assert not any(kernel.cookies[pid] for pid in pids)


def test_who_moves_in_gets_it_and_who_moves_out_loses_it(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    first, joiner = task(), task()
    batch = host.workload("batch", first)
    host.keeper.set_workloads([batch])
    host.write(BEST_EFFORT)
    host.ticks()
    host.ticks(Moves((Move(batch.cgroup, joiner, joiner, True),), complete=True))
    assert kernel.cookies[joiner] == kernel.cookies[first]
    host.ticks(Moves((Move(None, joiner, joiner, True),), complete=True))
    assert kernel.cookies[joiner] == 0
    assert kernel.cookies[first]
    assert host.keeper.state.helpers == 3


def test_lost_events_lead_to_a_look_at_everybody(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    first, joiner = task(), task()
    host.keeper.set_workloads([host.workload("batch", first)])
    host.write(BEST_EFFORT)
    host.ticks()
    host.workload("batch", joiner)
    host.ticks(seconds=3)
    assert kernel.cookies[joiner] == 0  # nobody told
    host.ticks(Moves((), complete=False))
    assert kernel.cookies[joiner] == kernel.cookies[first] or not kernel.cookies[first]
    assert kernel.cookies[first] == 0  # it is not in the cgroup any more


def test_without_events_everybody_is_looked_at_every_five_seconds(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    first, joiner = task(), task()
    host.keeper.set_workloads([host.workload("batch", first)])
    host.write(BEST_EFFORT)
    host.ticks(None)
    host.workload("batch", first, joiner)
    host.ticks(None, seconds=6)
    assert kernel.cookies[joiner] == kernel.cookies[first] != 0


def test_a_new_workload_and_one_that_is_best_effort_no_more(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    first, second = task(), task()
    old = host.workload("old", first)
    host.keeper.set_workloads([old])
    host.write(BEST_EFFORT)
    host.ticks()
    new = host.workload("new", second)
    host.keeper.set_workloads([old._replace(qos=QosClass.LS), new])
    host.ticks(seconds=3)
    assert kernel.cookies[first] == 0
    assert kernel.cookies[second]


def test_trust_groups_have_cookies_of_their_own(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    pids = [task(), task(), task()]
    host.keeper.set_workloads(
        [
            host.workload("plain", pids[0]),
            host.workload("red", pids[1], group="red"),
            host.workload("blue", pids[2], group="blue"),
        ]
    )
    names = [target.path for target in host.keeper.targets]
    assert names == [BEST_EFFORT, "red", "blue"]
    assert len({(t.scope, t.id) for t in host.keeper.targets}) == 3
    for name in names:
        host.write(name, group=name)
    host.ticks()
    assert len({kernel.cookies[pid] for pid in pids}) == 3
    host.write("0", group="red")
    host.ticks()
    assert [bool(kernel.cookies[pid]) for pid in pids] == [True, False, True]


def test_a_number_that_nobody_carries_any_more_is_forgotten(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    pid = task()
    host.keeper.set_workloads([host.workload("batch", pid)])
    host.write(BEST_EFFORT)
    host.ticks()
    (old,) = host.actuator.registry.cookies
    kernel.cookies[pid] = 0
    later = task()
    host.workload("batch", later)
    host.ticks(Moves((), complete=False))
    assert host.actuator.registry.cookies == {kernel.cookies[later]: BEST_EFFORT}
    assert kernel.cookies[later] != old


def test_a_crash_is_cleared_up_from_the_book(host: Host, kernel: CookieKernel, task: Task) -> None:
    stayed, moved_on, theirs = task(), task(), task()
    kernel.cookies[theirs] = FOREIGN
    host.keeper.set_workloads([host.workload("batch", stayed, moved_on, theirs)])
    host.write(BEST_EFFORT)
    host.ticks()
    host.workload("batch", stayed)  # moved_on left with its cookie, and nobody was there to see
    assert kernel.cookies[moved_on]
    report = restore_leftovers(host.state_dir, [CoreCookie(host.state_dir)])
    assert report.clean
    assert [result.result for result in report.results] == ["restored"]
    assert kernel.cookies[stayed] == kernel.cookies[moved_on] == 0
    assert kernel.cookies[theirs] == FOREIGN
    assert not list((host.state_dir / "cookies").iterdir())
    again = restore_leftovers(host.state_dir, [CoreCookie(host.state_dir)])
    assert again.results == ()


def test_a_task_that_cannot_be_cleared_keeps_the_record(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    pid = task()
    host.keeper.set_workloads([host.workload("batch", pid)])
    host.write(BEST_EFFORT)
    host.ticks()
    kernel.on_giving = lambda _task: kernel.errors.update({pid: errno.EPERM})
    outcome = host.write("0")
    assert outcome.failure is Failure.REFUSED
    assert f"task {pid}" in outcome.message
    assert outcome.applied == BEST_EFFORT
    assert host.actuator.registry.groups == {BEST_EFFORT}


def test_a_kernel_without_core_scheduling_has_no_such_knob(
    host: Host, kernel: CookieKernel
) -> None:
    kernel.errors[threading.get_native_id()] = errno.ENODEV
    assert "SMT" in (host.actuator.unsupported_reason() or "")
    assert host.executor.read([core_group(BEST_EFFORT)]) == ()
