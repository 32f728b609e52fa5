# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Slots of the sched probe on the running kernel: assigned, reused, and told apart from others."""

import itertools
from pathlib import Path
import time

import numpy as np
import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.sched import SchedProbe
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

WAITS = 100


def test_changes_of_cgroups_and_assignments_are_counted_in_different_words(
    probe: SchedProbe, groups: Groups
) -> None:
    # User space adds with a load and a store, so a change in between would be lost.
    words = probe._generation.values.view(np.uint64)
    by_creation = by_assignment = by_removal = set(range(len(words)))
    numbers = itertools.count()

    # In some rounds, but not in all, other programs make or remove a cgroup, too.
    def one_each() -> bool:
        nonlocal by_creation, by_assignment, by_removal
        number = next(numbers)
        kept, before = groups.make(f"kept{number}"), words.copy()
        removed, first = groups.make(f"removed{number}"), words.copy()
        assert probe.assign(groups.id(kept), latency=False, now_ns=time.monotonic_ns())
        second = words.copy()
        removed.rmdir()
        by_creation = by_creation & set(np.flatnonzero(first != before).tolist())
        by_assignment = by_assignment & set(np.flatnonzero(second != first).tolist())
        by_removal = by_removal & set(np.flatnonzero(words != second).tolist())
        return number > 20 and len(by_assignment) == len(by_removal) == 1

    eventually("one word for each", one_each)
    assert by_assignment != by_removal == by_creation


def test_a_recreated_cgroup_starts_at_zero(cgroup_root: Path, cgroup_layout: CgroupLayout) -> None:
    # One slot and one latency record, so both are used again.
    probe = SchedProbe(cpus=max(possible_cpus()) + 1, max_slots=4, max_latency=1)
    try:
        groups = Groups(cgroup_root, cgroup_layout, probe)
        path = groups.make("short", latency=True)
        with loads([Load(path, "bursts", CPU)]) as running:
            running.work_until("waits", groups.waited(path, least=WAITS))
        old = groups.id(path)
        path.rmdir()
        again = groups.make("short", latency=None)
        assert groups.id(again) != old
        probe.release(old, now_ns=time.monotonic_ns())
        # 3 s later, when the freed slot may be reused.
        assert probe.assign(groups.id(again), latency=True, now_ns=time.monotonic_ns() + 3 * 10**9)
        sample = groups.counted(again)
    finally:
        probe.close()
    assert (sample.oncpu_ns, sample.wait_total_ns, sample.waits) == (0, 0, 0)
    assert sample.runq_histogram is not None and sum(sample.runq_histogram) == 0


def test_a_cgroup_that_is_assigned_while_it_works_is_counted(groups: Groups) -> None:
    path = groups.make("found")
    with loads([Load(path, "bursts", CPU)]) as running:
        # Each CPU remembers the cgroup as one that is in no workload.
        running.work_until("runs", lambda: running.schedstat(path).runs > WAITS)
        groups.assign(path, latency=True)
        groups.assert_agree(running, [path])


def test_a_cgroup_outside_all_workloads_is_named_as_a_culprit(
    probe: SchedProbe, groups: Groups
) -> None:
    web, backup = groups.make("web", latency=True), groups.make("backup")
    probe.set_outside([groups.id(backup)], 2, now_ns=time.monotonic_ns())
    before = probe.poll()
    with loads([Load(web, "bursts", CPU), Load(backup, "hog", CPU)]) as running:
        running.work_until(
            "blame", lambda: groups.blame(probe.poll(), web, backup) > 0 and groups.read()
        )
        found = probe.poll()
        ran_ns = running.schedstat(backup).oncpu_ns
    # It is no workload, and its time is the system's as before.
    assert groups.id(backup) not in {each.cgroup for each in found.workloads}
    assert ran_ns > 0
    assert found.system_oncpu_ns > before.system_oncpu_ns
    probe.set_outside([], 2, now_ns=time.monotonic_ns())
    assert probe.poll().system_oncpu_ns >= found.system_oncpu_ns
    assert not any(each.culprit == groups.id(backup) for each in probe.poll().blame)
    # As a workload it begins at zero.
    probe.set_outside([groups.id(backup)], 2, now_ns=time.monotonic_ns())
    assert probe.assign(groups.id(backup), latency=False, now_ns=time.monotonic_ns())
    assert groups.sample(probe.poll(), backup).oncpu_ns == 0


def test_an_inactive_workload_keeps_its_sample_and_active_ones_are_reported(
    probe: SchedProbe, groups: Groups
) -> None:
    cgroups = [groups.make(f"quiet{n}", latency=n % 2 == 0) for n in range(6)]
    busy = [groups.make(f"busy{n}", latency=n == 0) for n in range(2)]
    probe.poll(), probe.poll()
    before = {sample.cgroup: sample for sample in probe.poll().workloads}
    with loads([Load(path, "bursts") for path in busy]) as running:
        # By the kernel's count, because a poll would take what changed. More than at the start of a
        # process, and so many that not all can be missed.
        running.work_until(
            "runs", lambda: all(running.schedstat(path).runs > WAITS for path in busy)
        )
        reading = probe.poll()
    others = {s.cgroup for s in reading.workloads if s is not before[s.cgroup]}
    assert others == {groups.id(path) for path in busy}
    assert set(reading.changed) == others and not reading.rearranged
    probe.release(groups.id(cgroups[0]), now_ns=time.monotonic_ns())
    assert probe.assign(groups.id(cgroups[0]), latency=False, now_ns=time.monotonic_ns())
    reading = probe.poll()
    assert reading.rearranged
    assert groups.id(cgroups[0]) in reading.changed
    assert groups.sample(reading, cgroups[0]).runq_histogram is None
    assert groups.sample(reading, cgroups[1]) is before[groups.id(cgroups[1])]


def test_created_and_removed_cgroups_are_counted(probe: SchedProbe, groups: Groups) -> None:
    before = probe.cgroup_changes
    path = groups.make("a")
    made = probe.cgroup_changes
    path.rmdir()
    # Other programs on this host create cgroups as well.
    assert before < made < probe.cgroup_changes


def test_assign_returns_false_without_a_free_slot(
    groups: Groups, cgroup_layout: CgroupLayout
) -> None:
    small = SchedProbe(cpus=max(possible_cpus()) + 1, max_slots=4, max_latency=1)
    try:
        first, second = groups.make("one"), groups.make("two")
        assert small.assign(groups.id(first), latency=False, now_ns=0)
        assert not small.assign(groups.id(second), latency=False, now_ns=0)
    finally:
        small.close()
