# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory guard: a service lives beside jobs that would take all memory of its node."""

from collections.abc import Iterator
import errno
from pathlib import Path
import random

import pytest

from controller.core.decision import Failure, Outcome
from controller.core.model import Knob, Target, TargetKind
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.knobs import action, applied, executor
from tests.kernel.memory_node import MIB, MemoryNode, memory_node
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

# Ended by the kernel for want of memory.
KILLED = -9


@pytest.fixture
def node(cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path) -> Iterator[MemoryNode]:
    with memory_node(cgroup_layout, cgroup_root, tmp_path) as made:
        yield made


def test_the_limit_follows_one_job_is_evicted_and_a_kill_leaves_no_limit(node: MemoryNode) -> None:
    with AgentRun(node).ready() as agent:
        eventually("a limit of what the margin leaves", lambda: node.limit_mib() == 276)
        node.start_service()
        # Its own memory is some MiB more than the 150 that it says.
        eventually("a limit beside the service", lambda: 100 < node.limit_mib() <= 126)

        def is_told() -> bool:
            knobs = agent.status()["in_force"]["knobs"]
            (held,) = (each for each in knobs if each["knob"] == Knob.MEMORY_MAX)
            assert held["original"] == "max"
            return int(held["value"]) <= 126 * MIB

        # The page is that of the last tick, and the file may be newer.
        eventually("the limit in the page", is_told)
        assert agent.series("sweetpoint_memory_limit_bytes") != {}
        node.start_job("one", 60)
        node.start_job("two", 30)
        node.service.grow(node.most_mib, 0)
        eventually("an eviction", lambda: node.jobs["one"].code is not None)
        eventually("the service", lambda: node.service.held_mib == node.most_mib)
        agent.watch(10)
        texts = [each["text"] for each in agent.status()["decisions"]]
        (why,) = (each for each in texts if each.startswith("to be evicted"))
        assert "the node runs out of memory" in why
        assert agent.series("sweetpoint_evictions_total")["memory", "killed"] == 1
        assert node.service.code is None and node.jobs["two"].code is None
        agent.kill_both()
        assert node.is_limited(), "a guardian that is killed too cannot restore"
    with AgentRun(node).ready() as agent:
        eventually("a limit again", node.is_limited)
        node.write(", guard: false")
        agent.kill_agent()
        eventually("no limit", lambda: not node.is_limited())


def test_a_limit_below_the_use_is_refused_and_each_original_comes_back(
    node: MemoryNode, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    write = executor(cgroup_layout, tmp_path)
    path = "/" + str(node.limit_file.parent.relative_to(node.mount))
    target = Target(TargetKind.CGROUP, node.hierarchy, node.limit_file.parent.stat().st_ino, path)
    node.start_job("one", 60)

    def lower(previous: str, mib: int) -> Outcome:
        value = str(mib * MIB)
        (outcome,) = write.execute([action(target, Knob.MEMORY_MAX, previous, value)], now_ns=7)
        return outcome

    refused = lower("max", 40)
    assert (refused.failure, refused.errno, refused.retry_ns) == (Failure.REFUSED, errno.EBUSY, 7)
    assert not node.is_limited() and node.jobs["one"].code is None
    for original in (node.limit_file.read_text(), f"{250 * MIB + 4096}\n"):
        node.limit_file.write_text(original)
        (reading,) = write.read([target])
        assert applied(lower(reading.value, 100)) == str(100 * MIB)
        # As a new process that finds the journal.
        assert executor(cgroup_layout, tmp_path).restore_all().clean
        assert node.limit_file.read_text() == original
        write = executor(cgroup_layout, tmp_path)


@pytest.mark.thorough
def test_the_service_lives_beside_jobs_without_end(node: MemoryNode) -> None:
    chance = random.Random(1)
    with AgentRun(node).ready():
        node.start_service()
        eventually("a limit beside the service", lambda: node.limit_mib() <= 126)
        node.grow_with_limit(chance)

        def has_seen_deaths() -> bool:
            node.keep_jobs(chance)
            return node.jobs_ended >= 3

        eventually("deaths of jobs", has_seen_deaths)
        assert node.service.code is None


@pytest.mark.thorough
def test_without_the_guard_the_service_is_killed(node: MemoryNode) -> None:
    chance = random.Random(1)
    node.write(", guard: false")
    with AgentRun(node).ready():
        node.start_service()

        def is_dead() -> bool:
            node.keep_jobs(chance)
            return node.service.code is not None

        eventually("the death of the service", is_dead)
        assert node.service.code == KILLED
        assert not node.is_limited()


@pytest.mark.soak
@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_series(node: MemoryNode, seed: int, guard: bool) -> None:
    node.write("" if guard else ", guard: false")
    with AgentRun(node).ready():
        node.start_service()
        if guard:
            eventually("a limit beside the service", lambda: node.limit_mib() <= 126)
        node.grow(7.0, random.Random(seed))
        code = node.service.code
    print(f"seed {seed} guard {guard}: service {code}, {node.jobs_ended} jobs ended")
    assert (code is None) is guard
