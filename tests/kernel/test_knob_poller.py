# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Readings of many knobs, a few at a time, on real cgroups."""

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


class Watch:
    """Readings of some pods, and the time that passes."""

    def __init__(self, layout: CgroupLayout, pods: list[Path], state_dir: Path) -> None:
        self.executor = executor(layout, state_dir)
        self.readings = KnobPoller(self.executor)
        self.targets = [target_of(layout, pod) for pod in pods]
        self.now_ns = 0

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.now_ns += TICK_NS
            self.readings.poll(self.now_ns)

    def quota(self, target: Target) -> str | None:
        quotas = {r.target: r.value for r in self.readings.all if r.knob is Knob.CPU_QUOTA}
        return quotas.get(target)


@pytest.fixture
def watch(cgroup_layout: CgroupLayout, pods: list[Path], tmp_path: Path) -> Watch:
    return Watch(cgroup_layout, pods, tmp_path)


def test_what_is_new_is_read_at_once_and_with_its_knobs(watch: Watch) -> None:
    one, two, three, *_ = watch.targets
    watch.readings.set_targets({one: EVERY, two: QUOTA})
    assert [(r.target, r.knob) for r in watch.readings.all] == [
        (one, Knob.SCHED_IDLE),
        (one, Knob.CPU_QUOTA),
        (two, Knob.CPU_QUOTA),
    ]
    watch.readings.set_targets({two: QUOTA, three: QUOTA})
    assert [r.target for r in watch.readings.all] == [two, three]


def test_foreign_values_are_seen_within_a_round_and_not_all_at_once(
    watch: Watch, pods: list[Path]
) -> None:
    watch.readings.set_targets(dict.fromkeys(watch.targets, EVERY))
    for pod in pods:
        set_quota(pod, 50_000, 100_000)
    seen = []
    for _ in range(ROUND):
        watch.ticks(1)
        seen.append(sum(watch.quota(target) == "50000 100000 0" for target in watch.targets))
    assert seen[-1] == len(pods)
    assert max(now - before for before, now in itertools.pairwise(seen)) == 1


def test_a_number_that_does_not_fit_the_rounds_leaves_nobody_out(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    pods = [make_child(cgroup_root, f"one-of-{number}") for number in range(23)]
    watch = Watch(cgroup_layout, pods, tmp_path)
    watch.readings.set_targets(dict.fromkeys(watch.targets, QUOTA))
    for pod in pods:
        set_quota(pod, 50_000, 100_000)
    for second in range(1, 20):  # four each time
        watch.readings.poll(second * NS_PER_SEC)
    assert {watch.quota(target) for target in watch.targets} == {"50000 100000 0"}


def test_the_readings_are_the_same_object_while_nothing_changes(watch: Watch) -> None:
    watch.readings.set_targets(dict.fromkeys(watch.targets, EVERY))
    before = watch.readings.all
    watch.ticks(2 * ROUND)
    assert watch.readings.all is before


def test_what_is_gone_is_left_out(watch: Watch, pods: list[Path]) -> None:
    watch.readings.set_targets(dict.fromkeys(watch.targets, EVERY))
    pods[3].rmdir()
    watch.ticks(ROUND)
    assert {r.target for r in watch.readings.all} == set(watch.targets) - {watch.targets[3]}


def test_writes_are_kept_and_forgotten_when_all_is_undone(watch: Watch) -> None:
    one = watch.targets[0]
    watch.readings.set_targets({one: EVERY})
    write = action(one, Knob.CPU_QUOTA, "max 100000 0", "9000 10000 0")
    watch.readings.update(watch.executor.execute([write], now_ns=0))
    assert watch.quota(one) == "9000 10000 0"
    watch.executor.restore_all()
    watch.readings.reset()
    watch.readings.set_targets({one: EVERY})
    assert watch.quota(one) == "max 100000 0"
