# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cookies on real processes with an emulated system call, see ``tests.support.cookie_kernel``."""

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
from tests.support.cookie_kernel import CookieKernel
from tests.support.waiting import eventually

FOREIGN = 0xF00
NOTHING = Moves((), complete=True)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> CookieKernel:
    kernel = CookieKernel()
    monkeypatch.setattr(prctl, "_prctl", kernel.prctl)
    return kernel


@pytest.fixture
def task() -> Iterator[Callable[[], int]]:
    """A function that starts a sleeping process and returns its id."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1].pid

    yield start
    for process in started:
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
    """The jobs of the helper, in this process, which carries cookies during a test."""

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

    def test_a_cookie_is_in_the_registry_before_a_task_has_it(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task, tmp_path: Path
    ) -> None:
        pid = task()

        def check(_task: int) -> None:
            on_disk = CookieRegistry(tmp_path / "cookies").cookies
            assert kernel.cookies[threading.get_native_id()] in on_disk

        kernel.on_giving = check
        assert reconcile(registry, lambda: {pid: "a"}).given == 1

    def test_a_later_task_gets_the_cookie_of_the_first(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        first, later = task(), task()
        known = reconcile(registry, lambda: {first: "a"}).carriers
        report = reconcile(registry, lambda: {later: "a"}, carriers=known, may_create=False)
        assert report.given == 1
        assert kernel.cookies[first] == kernel.cookies[later]

    def test_without_a_carrier_no_cookie_is_created(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        pid, other = task(), task()
        kernel.cookies[other] = FOREIGN
        report = reconcile(registry, lambda: {pid: "a"}, carriers={"a": [other]}, may_create=False)
        assert report.uncarried
        assert kernel.cookies[pid] == 0

    def test_foreign_cookies_are_not_changed(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        mine, foreign, elsewhere = task(), task(), task()
        kernel.cookies[foreign] = kernel.cookies[elsewhere] = FOREIGN
        report = reconcile(registry, lambda: {mine: "a", foreign: "a", elsewhere: ""})
        assert (report.given, report.foreign, report.cleared) == (1, 1, 0)
        assert kernel.cookies[foreign] == kernel.cookies[elsewhere] == FOREIGN

    def test_clears_tasks_that_left_and_changes_those_in_another_group(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        stays, left, changed = task(), task(), task()
        reconcile(registry, lambda: dict.fromkeys((stays, left, changed), "a"))
        report = reconcile(registry, lambda: {stays: "a", left: "", changed: "b"})
        assert (report.cleared, report.given) == (1, 1)
        assert kernel.cookies[left] == 0
        assert registry.cookies[kernel.cookies[changed]] == "b"
        assert registry.cookies[kernel.cookies[stays]] == "a"

    def test_skips_excluded_tasks_kernel_threads_and_ended_tasks(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        agent, dead = task(), 4_000_000
        kthreadd = 2
        wanted = dict.fromkeys((agent, dead, kthreadd), "a")
        report = reconcile(registry, lambda: wanted, excluded=frozenset([agent]))
        assert (report.given, report.problem) == (0, "")
        assert kernel.cookies[agent] == kernel.cookies[kthreadd] == 0

    def test_reports_a_refusal_by_the_kernel(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        allowed, guarded = task(), task()
        kernel.on_giving = lambda _task: kernel.errors.update({guarded: errno.EPERM})
        report = reconcile(registry, lambda: {allowed: "a", guarded: "a"})
        assert (report.given, report.failed) == (1, 1)
        assert f"task {guarded}" in report.problem

    def test_erase_clears_the_given_cookies_and_no_others(
        self, kernel: CookieKernel, registry: CookieRegistry, task: Task
    ) -> None:
        ours, of_other_group, foreign = task(), task(), task()
        reconcile(registry, lambda: {ours: "a", of_other_group: "b"})
        kernel.cookies[foreign] = FOREIGN
        kernel.cookies[threading.get_native_id()] = 0
        report = erase({kernel.cookies[ours]: "a"})
        assert (report.cleared, report.problem) == (1, "")
        assert kernel.cookies[ours] == 0
        assert kernel.cookies[of_other_group]
        assert kernel.cookies[foreign] == FOREIGN


class Host:
    """A tree of directories with ``tasks`` files, the actuator, and its reconciler."""

    def __init__(self, mount: Path, state_dir: Path) -> None:
        self.layout = CgroupLayout(hierarchy="cpu", mount=mount, version="v1", unified=None)
        self.state_dir = state_dir
        self.actuator = CoreCookie(state_dir)
        self.executor = Executor(Journal(state_dir / "journal"), [self.actuator])
        self.reconciler = CookieReconciler(self.layout, self.actuator)
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
        """Tick once a second, with *moves* in the first tick, and wait for helpers."""
        for _ in range(seconds):
            self.now_ns += NS_PER_SEC
            self.reconciler.reconcile(self.now_ns, moves)
            moves = NOTHING if moves is not None else None
            while self.actuator.busy and self.actuator._helper is not None:
                time.sleep(0.002)
                if _ended(self.actuator._helper._pid):
                    break
        self.reconciler.reconcile(self.now_ns, moves)


def _ended(pid: int | None) -> bool:
    return pid is None or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


@pytest.fixture
def host(tmp_path: Path, kernel: CookieKernel) -> Host:
    mount = tmp_path / "cpu"
    mount.mkdir()
    return Host(mount, tmp_path / "state")


def test_registering_a_group_gives_cookies_and_unregistering_clears_all(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    pids = [task(), task()]
    host.reconciler.set_workloads([host.workload("batch", *pids)])
    host.ticks()
    assert not any(kernel.cookies[pid] for pid in pids)
    assert host.write(BEST_EFFORT).applied == BEST_EFFORT
    host.ticks()
    assert len({kernel.cookies[pid] for pid in pids}) == 1
    assert kernel.cookies[pids[0]]
    assert host.reconciler.state.carrying == 2
    assert kernel.cookies[os.getpid()] == 0
    assert host.write("0").applied == "0"
    assert not any(kernel.cookies[pid] for pid in pids)
    assert not host.actuator.registry.groups
    host.ticks()
    assert not any(kernel.cookies[pid] for pid in pids)


def test_a_task_that_moves_in_gets_the_cookie_and_loses_it_when_it_moves_out(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    first, joiner = task(), task()
    batch = host.workload("batch", first)
    host.reconciler.set_workloads([batch])
    host.write(BEST_EFFORT)
    host.ticks()
    host.ticks(Moves((Move(batch.cgroup, joiner, joiner, True),), complete=True))
    assert kernel.cookies[joiner] == kernel.cookies[first]
    host.ticks(Moves((Move(None, joiner, joiner, True),), complete=True))
    assert kernel.cookies[joiner] == 0
    assert kernel.cookies[first]
    assert host.reconciler.state.helpers == 3


def test_tasks_of_a_service_that_are_about_to_run_are_not_waited_for(
    host: Host, task: Task
) -> None:
    new = task()
    host.reconciler.set_workloads([host.workload("batch", task())])
    host.write(BEST_EFFORT)
    host.ticks()
    arrived = [Move(CgroupId("cpu", 4711), new, new, whole=False)]
    host.reconciler.reconcile(host.now_ns, NOTHING, arrived)

    def is_over() -> bool:
        host.reconciler.reconcile(host.now_ns, NOTHING)
        return not host.actuator.busy

    eventually("the end of a helper for moves", is_over)
    before = host.reconciler.state.helpers
    # In the second after it moves wait, those of a service as well.
    host.reconciler.reconcile(host.now_ns, NOTHING, arrived)
    assert not host.actuator.busy
    assert host.reconciler.state.helpers == before


def test_tasks_that_are_about_to_run_have_the_cookie_when_the_tick_is_over(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    first, new = task(), task()
    batch = host.workload("batch", first)
    host.reconciler.set_workloads([batch])
    host.write(BEST_EFFORT)
    host.ticks()
    arrived = [Move(batch.cgroup, new, new, whole=False)]

    def has_cookie() -> bool:
        # In the second after the scan, in which moves wait for the next helper. On a busy machine
        # a helper may take longer than a tick waits for it.
        host.reconciler.reconcile(host.now_ns, NOTHING, arrived)
        return not host.actuator.busy and kernel.cookies[new] == kernel.cookies[first] != 0

    eventually("the cookie in the same tick", has_cookie)


def test_a_tick_does_not_wait_for_a_helper_that_hangs(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    first, new = task(), task()
    batch = host.workload("batch", first)
    host.reconciler.set_workloads([batch])
    host.write(BEST_EFFORT)
    host.ticks()
    kernel.on_giving = lambda _task: time.sleep(3600)
    host.reconciler.reconcile(host.now_ns, NOTHING, [Move(batch.cgroup, new, new, whole=False)])
    assert host.actuator.busy
    assert kernel.cookies[new] == 0
    host.reconciler.close()


def test_lost_events_cause_a_full_scan(host: Host, kernel: CookieKernel, task: Task) -> None:
    first, joiner = task(), task()
    host.reconciler.set_workloads([host.workload("batch", first)])
    host.write(BEST_EFFORT)
    host.ticks()
    host.workload("batch", joiner)
    host.ticks(seconds=3)
    assert kernel.cookies[joiner] == 0  # there was no event
    host.ticks(Moves((), complete=False))
    assert kernel.cookies[joiner] == kernel.cookies[first] or not kernel.cookies[first]
    assert kernel.cookies[first] == 0  # no longer in the cgroup


def test_without_events_there_is_a_full_scan_every_five_seconds(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    first, joiner = task(), task()
    host.reconciler.set_workloads([host.workload("batch", first)])
    host.write(BEST_EFFORT)
    host.ticks(None)
    host.workload("batch", first, joiner)
    host.ticks(None, seconds=6)
    assert kernel.cookies[joiner] == kernel.cookies[first] != 0


def test_a_new_workload_and_one_that_is_no_longer_best_effort(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    first, second = task(), task()
    old = host.workload("old", first)
    host.reconciler.set_workloads([old])
    host.write(BEST_EFFORT)
    host.ticks()
    new = host.workload("new", second)
    host.reconciler.set_workloads([old._replace(qos=QosClass.LS), new])
    host.ticks(seconds=3)
    assert kernel.cookies[first] == 0
    assert kernel.cookies[second]


def test_core_groups_have_separate_cookies(host: Host, kernel: CookieKernel, task: Task) -> None:
    pids = [task(), task(), task()]
    host.reconciler.set_workloads(
        [
            host.workload("plain", pids[0]),
            host.workload("red", pids[1], group="red"),
            host.workload("blue", pids[2], group="blue"),
        ]
    )
    names = [target.path for target in host.reconciler.targets]
    assert names == [BEST_EFFORT, "red", "blue"]
    assert len({(t.scope, t.id) for t in host.reconciler.targets}) == 3
    for name in names:
        host.write(name, group=name)
    host.ticks()
    assert len({kernel.cookies[pid] for pid in pids}) == 3
    host.write("0", group="red")
    host.ticks()
    assert [bool(kernel.cookies[pid]) for pid in pids] == [True, False, True]


def test_a_cookie_without_carrier_is_dropped(host: Host, kernel: CookieKernel, task: Task) -> None:
    pid = task()
    host.reconciler.set_workloads([host.workload("batch", pid)])
    host.write(BEST_EFFORT)
    host.ticks()
    (old,) = host.actuator.registry.cookies
    kernel.cookies[pid] = 0
    later = task()
    host.workload("batch", later)
    host.ticks(Moves((), complete=False))
    assert host.actuator.registry.cookies == {kernel.cookies[later]: BEST_EFFORT}
    assert kernel.cookies[later] != old


def test_after_a_crash_cookies_are_cleared_by_the_registry(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    stayed, moved_on, foreign = task(), task(), task()
    kernel.cookies[foreign] = FOREIGN
    host.reconciler.set_workloads([host.workload("batch", stayed, moved_on, foreign)])
    host.write(BEST_EFFORT)
    host.ticks()
    host.workload("batch", stayed)  # moved_on left with its cookie, unobserved
    assert kernel.cookies[moved_on]
    report = restore_leftovers(host.state_dir, [CoreCookie(host.state_dir)])
    assert report.clean
    assert [result.result for result in report.results] == ["restored"]
    assert kernel.cookies[stayed] == kernel.cookies[moved_on] == 0
    assert kernel.cookies[foreign] == FOREIGN
    assert not list((host.state_dir / "cookies").iterdir())
    again = restore_leftovers(host.state_dir, [CoreCookie(host.state_dir)])
    assert again.results == ()


def test_a_task_that_cannot_be_cleared_keeps_the_record(
    host: Host, kernel: CookieKernel, task: Task
) -> None:
    pid = task()
    host.reconciler.set_workloads([host.workload("batch", pid)])
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
