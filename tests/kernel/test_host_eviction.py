# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions by the kernel: real processes are frozen, thawed and killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import subprocess
import sys
import threading

import pytest

from actuators.base import GoneError, RefusedError
from actuators.executor import Executor, restore_leftovers
from actuators.freezer import freezers, kill, processes
from actuators.journal import Journal
from controller.config.sections.eviction import EvictionConfig, StandaloneAction
from controller.core.decision import Eviction
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult, Target
from controller.host.facts import CgroupLayout
from controller.reconcilers.host_eviction import HostEvictions
from tests.kernel.knobs import every_actuator, target_of
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

SECOND = 1_000_000_000
# While this program runs, its file grows. The file is never half-written when it is frozen.
COUNTS = """
import sys, time
with open(sys.argv[1], "ab", 0) as file:
    while True:
        file.write(b".")
        time.sleep(0.01)
"""


class Hog:
    """A counting process in the cgroup *pod* and, on v1, in the freezer cgroup of the same path."""

    def __init__(self, layout: CgroupLayout, pod: Path, home: Path) -> None:
        self.pod = pod
        self._counter = home / f"count-{pod.name}"
        self._counter.write_bytes(b"")
        self.process = subprocess.Popen([sys.executable, "-c", COUNTS, self._counter])
        (pod / "cgroup.procs").write_text(str(self.process.pid))
        self.frozen_at: Path | None = None
        if layout.version == "v1":
            self.frozen_at = freezers(layout)[0].mount / pod.relative_to(layout.mount)
            self.frozen_at.mkdir(parents=True)
            (self.frozen_at / "cgroup.procs").write_text(str(self.process.pid))

    def frozen(self) -> bool:
        """Whether the kernel has frozen it."""
        if self.frozen_at is None:
            return "frozen 1" in (self.pod / "cgroup.events").read_text()
        return (self.frozen_at / "freezer.state").read_text().strip() == "FROZEN"

    def close(self) -> None:
        if self.frozen_at is not None:
            remove_cgroup(self.frozen_at.parent)
        self.process.kill()
        self.process.wait()

    def count(self) -> int:
        return self._counter.stat().st_size

    def wait_running(self) -> None:
        """Wait until it counts on; only a hang, that is a frozen one, reaches the limit."""
        before = self.count()
        eventually(f"{self.pod.name} runs", lambda: self.count() > before)


def make(cgroup: Path) -> Path:
    """Make a cgroup for processes and child cgroups: no controllers are enabled for children."""
    cgroup.mkdir()
    return cgroup


@pytest.fixture
def hog(cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path) -> Iterator[Hog]:
    hog = Hog(cgroup_layout, make(cgroup_root / "hog"), tmp_path)
    try:
        hog.wait_running()
        yield hog
    finally:
        hog.close()


@pytest.fixture
def executor(cgroup_layout: CgroupLayout, tmp_path: Path) -> Executor:
    actuators = every_actuator(cgroup_layout, tmp_path)
    return Executor(Journal(tmp_path / "journal"), actuators)


def eviction(target: Target) -> Eviction:
    cgroup = CgroupId(target.scope, target.id)
    return Eviction(
        cgroup=cgroup, name="hog", channel=Channel.CPU, service="web", blame=1.0, reason=""
    )


def evict(standalone: HostEvictions, target: Target, now_ns: int = 0) -> EvictionAnswer:
    standalone.request(eviction(target), target.path, enforcing=True, now_ns=now_ns)
    answers: list[EvictionAnswer] = []

    def has_answer() -> bool:
        standalone.reconcile(now_ns)
        answers.extend(standalone.answers())
        return bool(answers)

    eventually("an answer", has_answer)
    return answers[0]


def test_a_frozen_workload_is_journalled_and_thawed_after_its_time(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, tmp_path: Path
) -> None:
    target = target_of(cgroup_layout, hog.pod)
    config = EvictionConfig(StandaloneAction.FREEZE, 60 * SECOND)
    standalone = HostEvictions(config, cgroup_layout, executor)
    answer = evict(standalone, target)
    assert (answer.result, answer.wait_ns) == (EvictionResult.FROZEN, 60 * SECOND)
    assert len(list((tmp_path / "journal").iterdir())) == 1
    eventually("the hog to stop", hog.frozen)
    count = hog.count()
    again = evict(standalone, target)
    assert (again.result, again.message) == (
        EvictionResult.REFUSED,
        "another program has frozen it",
    )
    standalone.reconcile(59 * SECOND)
    assert hog.frozen()
    assert hog.count() == count
    standalone.reconcile(60 * SECOND)
    hog.wait_running()
    assert not list((tmp_path / "journal").iterdir())


@pytest.mark.thorough
def test_a_restart_thaws_what_was_frozen_before_a_crash(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, tmp_path: Path
) -> None:
    config = EvictionConfig(StandaloneAction.FREEZE, 60 * SECOND)
    standalone = HostEvictions(config, cgroup_layout, executor)
    assert evict(standalone, target_of(cgroup_layout, hog.pod)).result is EvictionResult.FROZEN
    eventually("the hog to stop", hog.frozen)
    # As after a crash: only the journal is left.
    report = restore_leftovers(tmp_path, every_actuator(cgroup_layout, tmp_path))
    assert report.clean
    hog.wait_running()


@pytest.mark.thorough
def test_a_freezer_cgroup_with_foreign_processes_is_not_frozen(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, cgroup_root: Path, tmp_path: Path
) -> None:
    if cgroup_layout.version != "v1":
        pytest.skip("on v2 there is one hierarchy")
    assert hog.frozen_at is not None
    standalone = HostEvictions(EvictionConfig(StandaloneAction.FREEZE), cgroup_layout, executor)
    target = target_of(cgroup_layout, hog.pod)
    foreign = subprocess.Popen(["sleep", "infinity"])
    try:
        (hog.frozen_at / "cgroup.procs").write_text(str(foreign.pid))
        assert evict(standalone, target).result is EvictionResult.REFUSED
        (hog.frozen_at.parent / "cgroup.procs").write_text(str(foreign.pid))
        (hog.frozen_at.parent / "cgroup.procs").write_text(str(hog.process.pid))
        assert evict(standalone, target).result is EvictionResult.REFUSED, "not all in there"
        hog.wait_running()
    finally:
        foreign.kill()
        foreign.wait()


def test_kill_ends_all_processes_in_the_cgroup_and_no_others(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, cgroup_root: Path, tmp_path: Path
) -> None:
    other = Hog(cgroup_layout, make(cgroup_root / "hog-2"), tmp_path)
    child_cgroup = make(hog.pod / "below")
    child = subprocess.Popen(["sleep", "infinity"])
    try:
        other.wait_running()
        (child_cgroup / "cgroup.procs").write_text(str(child.pid))
        standalone = HostEvictions(EvictionConfig(StandaloneAction.KILL), cgroup_layout, executor)
        with reaped(hog.process, child):
            answer = evict(standalone, target_of(cgroup_layout, hog.pod))
        assert answer.result is EvictionResult.KILLED
        assert (hog.process.returncode, child.returncode) == (-9, -9)
        other.wait_running()
    finally:
        child.kill()
        other.close()


@contextmanager
def reaped(*children: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Wait for *children* in threads: zombies stay in their cgroup until they are waited for."""
    threads = [threading.Thread(target=child.wait) for child in children]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


@pytest.mark.thorough
def test_another_cgroup_with_the_same_path_is_not_touched(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor
) -> None:
    other = target_of(cgroup_layout, hog.pod)._replace(id=1)
    with pytest.raises(GoneError):
        kill(cgroup_layout, other)
    for action in (StandaloneAction.FREEZE, StandaloneAction.KILL):
        standalone = HostEvictions(EvictionConfig(action), cgroup_layout, executor)
        assert evict(standalone, other).result in (EvictionResult.GONE, EvictionResult.KILLED)
    hog.wait_running()


@pytest.mark.thorough
def test_the_agent_does_not_kill_itself(cgroup_layout: CgroupLayout) -> None:
    own = Path("/proc/self/cgroup").read_text().splitlines()
    path = (
        next(line.split(":", 2)[2] for line in own if cgroup_layout.hierarchy in line.split(":")[1])
        if cgroup_layout.version == "v1"
        else own[-1].split(":", 2)[2]
    )
    place = cgroup_layout.mount / path[1:]
    assert processes(cgroup_layout.mount, target_of(cgroup_layout, place))
    with pytest.raises(RefusedError, match="the agent itself"):
        kill(cgroup_layout, target_of(cgroup_layout, place))


@pytest.mark.thorough
@pytest.mark.parametrize("enforcing", [True, False])
def test_evictions_that_are_off_or_only_observed_are_reported(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, enforcing: bool
) -> None:
    action = StandaloneAction.OFF if enforcing else StandaloneAction.KILL
    standalone = HostEvictions(EvictionConfig(action), cgroup_layout, executor)
    target = target_of(cgroup_layout, hog.pod)
    standalone.request(eviction(target), target.path, enforcing=enforcing, now_ns=0)
    standalone.reconcile(1)
    (answer,) = standalone.answers()
    assert answer.result is EvictionResult.REPORTED
    hog.wait_running()
