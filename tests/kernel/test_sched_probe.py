# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sched probe compared with the kernel's own counts, under several mixes of load."""

import os
from pathlib import Path
import time

import numpy as np
import pytest

from controller.core.indicators.histogram import UPPER_NS
from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.sched import SchedProbe, SchedReading
from controller.probes.slots import SLOT_SYSTEM
from tests.kernel.groups import QUIET_NS, Groups
from tests.kernel.loads import Load, loads
from tests.kernel.overload import outweigh
from tests.kernel.steal import Steal

pytestmark = pytest.mark.kernel

CPU = max(os.sched_getaffinity(0))
# Both variants of reading kernel memory.
TYPED = pytest.mark.parametrize("probe", [True, False], ids=["typed", "untyped"], indirect=True)


@TYPED
def test_variant_is_the_requested_one(probe: SchedProbe, request: pytest.FixtureRequest) -> None:
    # Every kernel that runs this test accepts the typed variant, so a refusal is a bug.
    typed = request.node.callspec.params["probe"]
    assert probe.untyped == ("" if typed else "not requested")


PINNED = {
    "three hogs": [("a", "hog"), ("b", "hog"), ("b", "hog")],
    "service beside hogs": [("a", "bursts"), ("b", "hog"), ("b", "hog")],
    "many short sleepers": [("a", "bursts")] * 4 + [("b", "bursts")] * 4,
}


@TYPED
@pytest.mark.parametrize("mix", PINNED)
def test_pinned_tasks_agree_with_schedstat_within_one_percent(
    mix: str, probe: SchedProbe, groups: Groups
) -> None:
    cgroups = {name: groups.make(name, latency=name == "a") for name in "ab"}
    wanted = [Load(cgroups[name], kind, CPU) for name, kind in PINNED[mix]]
    with loads(wanted, seconds=2) as running:
        groups.assert_agree(probe, running, cgroups.values())


@pytest.mark.skipif(os.cpu_count() == 1, reason="tasks cannot migrate on one CPU")
@pytest.mark.parametrize("kinds", [["hog"] * 5, ["hog"] * 3 + ["bursts"] * 3, ["roam"] * 3])
def test_migrating_tasks_are_never_overstated(
    kinds: list[str], probe: SchedProbe, groups: Groups
) -> None:
    cgroup = groups.make("a", latency=True)
    with loads([Load(cgroup, kind) for kind in kinds], seconds=2) as running:
        before, first = running.schedstat(cgroup), groups.sample(probe.poll(), cgroup)
        running.work()
        after, last = running.schedstat(cgroup), groups.sample(probe.poll(), cgroup)
    assert first.wait_total_ns is not None and last.wait_total_ns is not None
    seen_ns = last.wait_total_ns - first.wait_total_ns
    true_ns = after.wait_ns - before.wait_ns
    lost = 1 - seen_ns / true_ns
    print(f"{'+'.join(kinds)}: {lost:.2%} of {true_ns / 1e9:.3f}s lost to migration")
    assert seen_ns <= true_ns + QUIET_NS
    # A wait that is interrupted by a forced migration is counted only from the migration on (roam
    # is migrated every 20 ms); the scheduler by itself migrates far less often.
    assert lost < (0.5 if "roam" in kinds else 0.05)


def test_histogram_holds_every_wait(probe: SchedProbe, groups: Groups) -> None:
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    with loads([Load(service, "bursts", CPU), Load(hog, "hog", CPU)], seconds=2) as running:
        running.work()
        sample = groups.sample(probe.poll(), service)
    assert sample.runq_histogram is not None and sample.waits is not None
    assert sum(sample.runq_histogram) == sample.waits
    upper_ns = sum(n * UPPER_NS[b] for b, n in enumerate(sample.runq_histogram))
    assert sample.wait_total_ns is not None
    assert 0.75 * upper_ns - sample.waits * UPPER_NS[0] <= sample.wait_total_ns <= upper_ns


@TYPED
def test_blame_names_the_hog_among_four(probe: SchedProbe, groups: Groups) -> None:
    service = groups.make("service", latency=True)
    names = ("hog", "quiet1", "quiet2", "quiet3")
    others = {name: groups.make(name, latency=False) for name in names}
    wanted = [Load(service, "bursts", CPU), Load(others["hog"], "hog", CPU)]
    wanted += [Load(others[name], "idle", CPU) for name in names[1:]]
    with loads(wanted, seconds=3) as running:
        running.work()
        reading = probe.poll()
    inflicted_ns = groups.sample(reading, service).wait_inflicted_ns
    assert inflicted_ns is not None and inflicted_ns > 50_000_000
    by_the_four_ns = inflicted_ns - _blame_of_others(reading)
    assert groups.blame(reading, service, others["hog"]) >= 0.9 * by_the_four_ns
    assert sum(b.wait_ns for b in reading.blame) == pytest.approx(inflicted_ns, rel=0.001)


def test_a_service_that_waits_for_itself_blames_no_other_workload(
    probe: SchedProbe, groups: Groups
) -> None:
    service, quiet = groups.make("service", latency=True), groups.make("quiet", latency=False)
    wanted = [*([Load(service, "hog", CPU)] * 3), Load(quiet, "idle", CPU)]
    with loads(wanted, seconds=1) as running:
        first, started_s = groups.sample(probe.poll(), service), time.monotonic()
        running.work()
        wall_ns = (time.monotonic() - started_s) * 1e9
        last = groups.sample(probe.poll(), service)

    def gained(counter: str) -> int:
        return int(getattr(last, counter)) - int(getattr(first, counter))

    # Three tasks on one CPU: each waits for the two others, and all wait while another task runs.
    assert gained("wait_total_ns") > 1.5 * gained("oncpu_ns")
    not_running_ns = wall_ns - gained("oncpu_ns")
    assert gained("wait_inflicted_ns") <= 3 * not_running_ns


def test_on_cpu_time_is_right_in_spite_of_missed_switches(
    probe: SchedProbe, groups: Groups
) -> None:
    service = groups.make("service", latency=True)
    cpus = probe._cpus.values
    with loads([Load(service, "bursts", CPU)], seconds=2) as running:
        before, first, steal = running.schedstat(service).oncpu_ns, probe.poll(), Steal()
        running.start()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            # As if a task outside all workloads had been picked last.
            cpus["running"][CPU], cpus["slot"][CPU] = 1, SLOT_SYSTEM
            time.sleep(0.0005)
        running.done()
        after, last = running.schedstat(service).oncpu_ns, probe.poll()
    assert last.missed_switches - first.missed_switches > 100
    old, new = groups.sample(first, service), groups.sample(last, service)
    assert old.oncpu_ns is not None and new.oncpu_ns is not None
    steal.assert_equal(new.oncpu_ns - old.oncpu_ns, after - before, rel=0.02)


@TYPED
@pytest.mark.parametrize("limited", ["service", "service/container"])
def test_own_quota_is_waiting_but_not_inflicted(
    probe: SchedProbe, groups: Groups, cgroup_root: Path, cgroup_layout: CgroupLayout, limited: str
) -> None:
    outweigh(cgroup_root, 100)  # otherwise other work uses the time before the quota bites
    service = groups.make("service", latency=True)
    container = groups.make("service/container")
    quota_of = {"service": service, "service/container": container}
    _set_quota(quota_of[limited], cgroup_layout, quota_us=2000, period_us=20000)
    with loads([Load(container, "hog", CPU), Load(container, "hog", CPU)], seconds=2) as running:
        running.work()
        reading = probe.poll()
        sample = groups.sample(reading, service)
    assert sample.wait_total_ns is not None and sample.wait_inflicted_ns is not None
    assert sample.throttled_ns is not None
    assert sample.wait_total_ns > 1_500_000_000
    assert sample.throttled_ns > 0.7 * sample.wait_total_ns
    by_the_test_ns = sample.wait_inflicted_ns - _blame_of_others(reading)
    assert by_the_test_ns < 0.01 * sample.wait_total_ns
    assert sample.wait_inflicted_ns <= sample.wait_total_ns - 0.95 * sample.throttled_ns


def test_own_quota_beside_a_hog_is_not_blamed_on_the_hog(
    probe: SchedProbe, groups: Groups, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    outweigh(cgroup_root, 100)  # otherwise other work uses the time before the quota bites
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    _set_quota(service, cgroup_layout, quota_us=2000, period_us=20000)
    with loads([Load(service, "hog", CPU), Load(hog, "hog", CPU)], seconds=2) as running:
        running.work()
        sample = groups.sample(probe.poll(), service)
    assert sample.wait_total_ns is not None and sample.wait_inflicted_ns is not None
    assert sample.throttled_ns is not None
    assert sample.throttled_ns > 0.6 * sample.wait_total_ns
    # After each throttling the hog is in the middle of a slice: that part is blamed on the hog.
    assert sample.wait_inflicted_ns <= sample.wait_total_ns - 0.95 * sample.throttled_ns


def test_throttling_of_the_past_hides_no_wait(
    cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    service, hog = cgroup_root / "service", cgroup_root / "hog"
    service.mkdir()
    _set_quota(service, cgroup_layout, quota_us=2000, period_us=200_000)
    with loads([Load(service, "hog", CPU)], seconds=1) as running:
        running.work()
    _set_quota(service, cgroup_layout, quota_us=None, period_us=200_000)
    # The kernel keeps the sum, and the probe finds it at the first long wait: the same as after
    # another group took the entry in the probe's map.
    probe = SchedProbe(cpus=max(possible_cpus()) + 1)
    try:
        groups = Groups(cgroup_root, cgroup_layout, probe)
        groups.assign(service, latency=True)
        groups.make("hog", latency=False)
        with loads([Load(service, "hog", CPU), Load(hog, "hog", CPU)], seconds=1) as running:
            running.work()
            sample = groups.sample(probe.poll(), service)
    finally:
        probe.close()
    assert sample.wait_inflicted_ns is not None and sample.wait_inflicted_ns > 50_000_000
    assert sample.throttled_ns == 0


def test_changes_of_cgroups_and_assignments_are_counted_in_different_words(
    probe: SchedProbe, groups: Groups
) -> None:
    # User space adds with a load and a store, so a change in between would be lost.
    words = probe._generation.values.view(np.uint64)
    by_creation = by_assignment = by_removal = set(range(len(words)))
    # In some rounds, but not in all, other programs make or remove a cgroup, too.
    for number in range(20):
        kept, before = groups.make(f"kept{number}"), words.copy()
        removed, first = groups.make(f"removed{number}"), words.copy()
        assert probe.assign(groups.id(kept), latency=False, now_ns=time.monotonic_ns())
        second = words.copy()
        removed.rmdir()
        by_creation = by_creation & set(np.flatnonzero(first != before).tolist())
        by_assignment = by_assignment & set(np.flatnonzero(second != first).tolist())
        by_removal = by_removal & set(np.flatnonzero(words != second).tolist())
    assert len(by_assignment) == len(by_removal) == 1
    assert by_assignment != by_removal == by_creation


def test_nested_cgroups_belong_to_their_workload(probe: SchedProbe, groups: Groups) -> None:
    outer, steal = groups.make("outer", latency=True), Steal()
    with loads([Load(groups.make("outer/made/later"), "hog", CPU)], seconds=1) as running:
        running.work()
        sample = groups.sample(probe.poll(), outer)
        spent = running.schedstat(outer)
    steal.assert_equal(sample.oncpu_ns, spent.oncpu_ns, rel=0.05)


def test_a_recreated_cgroup_starts_at_zero(probe: SchedProbe, groups: Groups) -> None:
    path = groups.make("short", latency=True)
    with loads([Load(path, "hog", CPU)], seconds=0.5) as running:
        running.work()
    old = groups.id(path)
    path.rmdir()
    again = groups.make("short", latency=None)
    assert groups.id(again) != old
    probe.release(old, now_ns=time.monotonic_ns())
    # 3 s later, when the freed slot may be reused.
    assert probe.assign(groups.id(again), latency=True, now_ns=time.monotonic_ns() + 3 * 10**9)
    sample = groups.sample(probe.poll(), again)
    assert (sample.oncpu_ns, sample.wait_total_ns, sample.waits) == (0, 0, 0)
    assert sample.runq_histogram is not None and sum(sample.runq_histogram) == 0


def test_an_inactive_workload_keeps_its_sample_and_active_ones_are_reported(
    probe: SchedProbe, groups: Groups
) -> None:
    cgroups = [groups.make(f"quiet{n}", latency=n % 2 == 0) for n in range(6)]
    busy = [groups.make(f"busy{n}", latency=n == 0) for n in range(2)]
    probe.poll(), probe.poll()
    before = {sample.cgroup: sample for sample in probe.poll().workloads}
    with loads([Load(path, "bursts") for path in busy], seconds=0.5) as running:
        running.work()
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


def _set_quota(path: Path, layout: CgroupLayout, *, quota_us: int | None, period_us: int) -> None:
    if layout.version == "v2":
        (path / "cpu.max").write_text(f"{quota_us or 'max'} {period_us}")
        return
    (path / "cpu.cfs_period_us").write_text(str(period_us))
    (path / "cpu.cfs_quota_us").write_text(str(quota_us or -1))


def _blame_of_others(reading: SchedReading) -> int:
    # Waits caused by other processes of the machine: in no workload, or before what the ring holds.
    return sum(b.wait_ns for b in reading.blame if b.culprit is None)
