# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The knob poller on real cgroups: round-robin reading of many knobs."""

import itertools
from pathlib import Path

import pytest

from controller.agent.knob_poller import KnobPoller
from controller.core.model import Knob, Target
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from tests.kernel.knobs import action, executor, make_child, set_quota, target_of

pytestmark = pytest.mark.kernel

EVERY = frozenset(Knob)
QUOTA = frozenset({Knob.CPU_QUOTA})
TICK_NS = 200_000_000
ROUND = 26  # ticks


@pytest.fixture
def pods(cgroup_root: Path) -> list[Path]:
    return [make_child(cgroup_root, f"pod{number}") for number in range(8)]


class Polled:
    """A poller for some pods, with a simulated clock."""

    def __init__(self, layout: CgroupLayout, pods: list[Path], state_dir: Path) -> None:
        self.executor = executor(layout, state_dir)
        self.poller = KnobPoller(self.executor)
        self.targets = [target_of(layout, pod) for pod in pods]
        self.now_ns = 0

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.now_ns += TICK_NS
            self.poller.poll(self.now_ns)

    def quota(self, target: Target) -> str | None:
        quotas = {r.target: r.value for r in self.poller.all if r.knob is Knob.CPU_QUOTA}
        return quotas.get(target)


@pytest.fixture
def polled(cgroup_layout: CgroupLayout, pods: list[Path], tmp_path: Path) -> Polled:
    return Polled(cgroup_layout, pods, tmp_path)


@pytest.mark.thorough
def test_the_first_targets_are_read_at_once_and_new_ones_in_the_next_tick(polled: Polled) -> None:
    one, two, three, *_ = polled.targets
    polled.poller.set_targets({one: EVERY, two: QUOTA})
    assert [(r.target, r.knob) for r in polled.poller.all] == [
        (one, Knob.SCHED_IDLE),
        (one, Knob.CPU_QUOTA),
        (two, Knob.CPU_QUOTA),
    ]
    polled.poller.set_targets({two: QUOTA, three: QUOTA})
    assert [r.target for r in polled.poller.all] == [two]
    polled.ticks(1)
    assert [r.target for r in polled.poller.all] == [two, three]
    # Not later: the planner must not write what it may not write any more.
    polled.poller.set_targets({two: EVERY, three: frozenset()})
    assert {(r.target, r.knob) for r in polled.poller.all} == {
        (two, Knob.SCHED_IDLE),
        (two, Knob.CPU_QUOTA),
    }


@pytest.mark.thorough
def test_of_a_crowd_of_new_cgroups_a_few_are_read_per_tick(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    pods = [make_child(cgroup_root, f"crowd-{number}") for number in range(80)]
    polled = Polled(cgroup_layout, pods, tmp_path)
    first, *crowd = polled.targets
    polled.poller.set_targets({first: QUOTA})
    read = []
    for last in range(4):  # while more come, the older ones are first
        present = crowd[: 40 + 10 * last]
        polled.poller.set_targets({first: QUOTA, **dict.fromkeys(present, QUOTA)})
        polled.ticks(1)
        read.append({r.target for r in polled.poller.all} - {first})
    assert [len(each) for each in read] == [32, 50, 60, 70]
    assert read[0] == set(crowd[:32])


def test_foreign_values_are_noticed_within_a_round_one_per_tick(
    polled: Polled, pods: list[Path]
) -> None:
    polled.poller.set_targets(dict.fromkeys(polled.targets, EVERY))
    for pod in pods:
        set_quota(pod, 50_000, 100_000)
    seen = []
    for _ in range(ROUND):
        polled.ticks(1)
        seen.append(sum(polled.quota(target) == "50000 100000 0" for target in polled.targets))
    assert seen[-1] == len(pods)
    assert max(now - before for before, now in itertools.pairwise(seen)) == 1


@pytest.mark.thorough
def test_a_number_of_targets_that_does_not_divide_the_round_skips_none(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    pods = [make_child(cgroup_root, f"one-of-{number}") for number in range(23)]
    polled = Polled(cgroup_layout, pods, tmp_path)
    polled.poller.set_targets(dict.fromkeys(polled.targets, QUOTA))
    for pod in pods:
        set_quota(pod, 50_000, 100_000)
    for second in range(1, 20):
        polled.poller.poll(second * NS_PER_SEC)
    assert {polled.quota(target) for target in polled.targets} == {"50000 100000 0"}


def test_a_poll_after_two_seconds_reads_more(polled: Polled, pods: list[Path]) -> None:
    polled.poller.set_targets(dict.fromkeys(polled.targets, QUOTA))
    for pod in pods:
        set_quota(pod, 50_000, 100_000)
    polled.poller.poll(2 * NS_PER_SEC)
    assert sum(polled.quota(target) == "50000 100000 0" for target in polled.targets) == 3


@pytest.mark.thorough
def test_the_readings_are_the_same_object_while_nothing_changes(polled: Polled) -> None:
    polled.poller.set_targets(dict.fromkeys(polled.targets, EVERY))
    before = polled.poller.all
    polled.ticks(2 * ROUND)
    assert polled.poller.all is before


@pytest.mark.thorough
def test_removed_cgroups_have_no_readings(polled: Polled, pods: list[Path]) -> None:
    polled.poller.set_targets(dict.fromkeys(polled.targets, EVERY))
    pods[3].rmdir()
    polled.ticks(ROUND)
    assert {r.target for r in polled.poller.all} == set(polled.targets) - {polled.targets[3]}


@pytest.mark.thorough
def test_results_of_writes_are_kept_until_a_reset(polled: Polled) -> None:
    one = polled.targets[0]
    polled.poller.set_targets({one: EVERY})
    write = action(one, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")
    polled.poller.update(polled.executor.execute([write], now_ns=0))
    assert polled.quota(one) == "9000 10000 0"
    polled.executor.restore_all()
    polled.poller.reset()
    polled.poller.set_targets({one: EVERY})
    assert polled.quota(one) == "max 100000 0"
