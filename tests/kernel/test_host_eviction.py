# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions on a plain host: real processes frozen and killed, and nobody beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import subprocess
import sys
import threading
import time

import pytest

from actuators.base import GoneError, RefusedError
from actuators.core_scheduling.cookie import CoreCookie
from actuators.executor import Executor, restore_leftovers
from actuators.freezer import freezers, kill, processes
from actuators.journal import Journal
from actuators.registry import build
from controller.config.sections.eviction import EvictionConfig, StandaloneAction
from controller.core.decision import Eviction
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult, Target
from controller.host.facts import CgroupLayout
from controller.reconcilers.host_eviction import HostEvictions
from tests.helpers import remove_cgroup
from tests.kernel.agent import eventually
from tests.kernel.knobs import target_of

pytestmark = pytest.mark.kernel

SECOND = 1_000_000_000
# Counts by the length of a file as long as it runs; whenever it is frozen, the file is whole.
COUNTS = """
import sys, time
with open(sys.argv[1], "ab", 0) as file:
    while True:
        file.write(b".")
        time.sleep(0.01)
"""


class Hog:
    """A process in the cgroup *pod* (and in the freezer's of the same path), counting."""

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

    def close(self) -> None:
        if self.frozen_at is not None:
            remove_cgroup(self.frozen_at.parent)
        self.process.kill()
        self.process.wait()

    def count(self) -> int:
        return self._counter.stat().st_size

    def runs(self) -> bool:
        before = self.count()
        time.sleep(0.2)
        return self.count() > before


def make(cgroup: Path) -> Path:
    """Make a cgroup for processes and more cgroups: on v2 one that hands out no controllers."""
    cgroup.mkdir()
    return cgroup


@pytest.fixture
def hog(cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path) -> Iterator[Hog]:
    hog = Hog(cgroup_layout, make(cgroup_root / "hog"), tmp_path)
    try:
        eventually("the hog", 5, hog.runs)
        yield hog
    finally:
        hog.close()


@pytest.fixture
def executor(cgroup_layout: CgroupLayout, tmp_path: Path) -> Executor:
    actuators = build(cgroup_layout, CoreCookie(tmp_path))
    return Executor(Journal(tmp_path / "journal"), actuators)


def eviction(target: Target) -> Eviction:
    cgroup = CgroupId(target.scope, target.id)
    return Eviction(
        cgroup=cgroup, name="hog", channel=Channel.CPU, service="web", blame=1.0, reason=""
    )


def ask(standalone: HostEvictions, target: Target, now_ns: int = 0) -> EvictionAnswer:
    standalone.request(eviction(target), target.path, enforcing=True, now_ns=now_ns)
    answers: list[EvictionAnswer] = []

    def answered() -> bool:
        standalone.reconcile(now_ns)
        answers.extend(standalone.answers())
        return bool(answers)

    eventually("an answer", 5, answered)
    return answers[0]


def test_freeze_thaw_after_its_time_and_the_journal_between(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, tmp_path: Path
) -> None:
    target = target_of(cgroup_layout, hog.pod)
    config = EvictionConfig(StandaloneAction.FREEZE, 60 * SECOND)
    standalone = HostEvictions(config, cgroup_layout, executor)
    answer = ask(standalone, target)
    assert (answer.result, answer.wait_ns) == (EvictionResult.FROZEN, 60 * SECOND)
    assert len(list((tmp_path / "journal").iterdir())) == 1
    eventually("the hog to stop", 2, lambda: not hog.runs())
    again = ask(standalone, target)
    assert (again.result, again.message) == (
        EvictionResult.REFUSED,
        "another program has frozen it",
    )
    standalone.reconcile(59 * SECOND)
    assert not hog.runs()
    standalone.reconcile(60 * SECOND)
    eventually("the hog to run", 2, hog.runs)
    assert not list((tmp_path / "journal").iterdir())


def test_who_died_while_somebody_was_frozen_thaws_him_at_the_next_start(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, tmp_path: Path
) -> None:
    config = EvictionConfig(StandaloneAction.FREEZE, 60 * SECOND)
    standalone = HostEvictions(config, cgroup_layout, executor)
    assert ask(standalone, target_of(cgroup_layout, hog.pod)).result is EvictionResult.FROZEN
    eventually("the hog to stop", 2, lambda: not hog.runs())
    # Nothing but the journal is left of it.
    report = restore_leftovers(tmp_path, build(cgroup_layout, CoreCookie(tmp_path)))
    assert report.clean
    eventually("the hog to run", 2, hog.runs)


def test_a_freezer_cgroup_with_strangers_is_left_alone(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, cgroup_root: Path, tmp_path: Path
) -> None:
    if cgroup_layout.version != "v1":
        pytest.skip("on v2 there is one hierarchy")
    assert hog.frozen_at is not None
    standalone = HostEvictions(EvictionConfig(StandaloneAction.FREEZE), cgroup_layout, executor)
    target = target_of(cgroup_layout, hog.pod)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (hog.frozen_at / "cgroup.procs").write_text(str(stranger.pid))
        assert ask(standalone, target).result is EvictionResult.REFUSED
        (hog.frozen_at.parent / "cgroup.procs").write_text(str(stranger.pid))
        (hog.frozen_at.parent / "cgroup.procs").write_text(str(hog.process.pid))
        assert ask(standalone, target).result is EvictionResult.REFUSED, "it is not all in there"
        assert hog.runs()
    finally:
        stranger.kill()
        stranger.wait()


def test_kill_ends_all_in_the_cgroup_and_nobody_beside_it(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, cgroup_root: Path, tmp_path: Path
) -> None:
    beside = Hog(cgroup_layout, make(cgroup_root / "hog-2"), tmp_path)
    below = make(hog.pod / "below")
    child = subprocess.Popen(["sleep", "60"])
    try:
        eventually("the other hog", 5, beside.runs)
        (below / "cgroup.procs").write_text(str(child.pid))
        standalone = HostEvictions(EvictionConfig(StandaloneAction.KILL), cgroup_layout, executor)
        with reaped(hog.process, child):
            answer = ask(standalone, target_of(cgroup_layout, hog.pod))
        assert answer.result is EvictionResult.KILLED
        assert (hog.process.returncode, child.returncode) == (-9, -9)
        assert beside.runs()
    finally:
        child.kill()
        beside.close()


@contextmanager
def reaped(*children: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Zombies stay in their cgroup until somebody waits for them."""

    threads = [threading.Thread(target=child.wait) for child in children]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def test_another_cgroup_of_the_same_path_is_never_meant(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor
) -> None:
    other = target_of(cgroup_layout, hog.pod)._replace(id=1)
    with pytest.raises(GoneError):
        kill(cgroup_layout, other)
    for action in (StandaloneAction.FREEZE, StandaloneAction.KILL):
        standalone = HostEvictions(EvictionConfig(action), cgroup_layout, executor)
        assert ask(standalone, other).result in (EvictionResult.GONE, EvictionResult.KILLED)
    assert hog.runs()


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


@pytest.mark.parametrize("enforcing", [True, False])
def test_what_is_off_or_only_observed_is_told_and_not_done(
    cgroup_layout: CgroupLayout, hog: Hog, executor: Executor, enforcing: bool
) -> None:
    action = StandaloneAction.OFF if enforcing else StandaloneAction.KILL
    standalone = HostEvictions(EvictionConfig(action), cgroup_layout, executor)
    target = target_of(cgroup_layout, hog.pod)
    standalone.request(eviction(target), target.path, enforcing=enforcing, now_ns=0)
    standalone.reconcile(1)
    (answer,) = standalone.answers()
    assert answer.result is EvictionResult.REPORTED
    assert hog.runs()
