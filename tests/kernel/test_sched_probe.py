# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sched probe compared with the kernel's own counts, under several mixes of load."""

import os
from pathlib import Path
import time

import numpy as np
import pytest

from controller.core.indicators.measurement import BUCKETS, LOWER_NS, UPPER_NS
from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.sched import SchedProbe
from controller.probes.slots import SLOT_SYSTEM
from tests.kernel.groups import Groups
from tests.kernel.knobs import set_quota
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.kernel.steal import Steal, assert_agree
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.kernel
thorough, timed = pytest.mark.thorough, pytest.mark.timed

# Both variants of reading kernel memory.
TYPED = pytest.mark.parametrize("probe", [True, False], ids=["typed", "untyped"], indirect=True)
WAITS = 100


@thorough
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


def pinned(mix: str, groups: Groups) -> tuple[list[Path], list[Load]]:
    """Make the cgroups of *mix*; return them and its loads."""
    cgroups = {name: groups.make(name, latency=name == "a") for name in "ab"}
    return [*cgroups.values()], [Load(cgroups[name], kind, CPU) for name, kind in PINNED[mix]]


@thorough
@TYPED
@pytest.mark.parametrize("mix", PINNED)
def test_waits_of_pinned_tasks_are_those_of_the_kernel(
    mix: str, probe: SchedProbe, groups: Groups
) -> None:
    cgroups, wanted = pinned(mix, groups)
    with loads(wanted) as running:
        groups.assert_agree(running, cgroups)


@timed
@TYPED
@pytest.mark.parametrize("mix", PINNED)
def test_pinned_tasks_agree_with_schedstat_within_one_percent(
    mix: str, probe: SchedProbe, groups: Groups
) -> None:
    cgroups, wanted = pinned(mix, groups)
    with loads(wanted, seconds=2) as running:
        assert_agree(groups, probe, running, cgroups)


MIGRATING = [["hog"] * 5, ["hog"] * 3 + ["bursts"] * 3, ["roam"] * 3]


@thorough
@pytest.mark.skipif(os.cpu_count() == 1, reason="tasks cannot migrate on one CPU")
@pytest.mark.parametrize("kinds", MIGRATING)
def test_migrating_tasks_are_never_overstated(
    kinds: list[str], probe: SchedProbe, groups: Groups
) -> None:
    cgroup = groups.make("a", latency=True)
    with loads([Load(cgroup, kind) for kind in kinds]) as running:
        groups.assert_agree(running, [cgroup])


@timed
@pytest.mark.skipif(os.cpu_count() == 1, reason="tasks cannot migrate on one CPU")
@pytest.mark.parametrize("kinds", MIGRATING)
def test_little_of_the_wait_of_migrating_tasks_is_lost(
    kinds: list[str], probe: SchedProbe, groups: Groups
) -> None:
    cgroup = groups.make("a", latency=True)
    with loads([Load(cgroup, kind) for kind in kinds], seconds=2) as running:
        before, first = running.schedstat(cgroup), groups.counted(cgroup)
        running.work()
        true_ns = running.schedstat(cgroup).since(before).wait_ns
        last = groups.counted(cgroup)
    assert first.wait_total_ns is not None and last.wait_total_ns is not None
    lost = 1 - (last.wait_total_ns - first.wait_total_ns) / true_ns
    print(f"{'+'.join(kinds)}: {lost:.2%} of {true_ns / 1e9:.3f} s lost to migration")
    # A wait that is interrupted by a forced migration is counted only from the migration on (roam
    # is migrated every 20 ms); the scheduler by itself migrates far less often.
    assert lost < (0.5 if "roam" in kinds else 0.05)


@thorough
@TYPED
def test_all_time_of_a_cpu_is_counted_once(probe: SchedProbe, groups: Groups) -> None:
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    cpu = probe._cpus.values

    def counted_ns() -> tuple[int, int, int]:
        """Return the sum over all slots, between a time not after it and one not before it."""
        least = int(cpu["since"][CPU])
        total = int(probe._accounts[:, CPU, 0].sum())
        switches = int(cpu["switches"][CPU])
        eventually("a switch", lambda: cpu["switches"][CPU] > switches)
        return least, total, int(cpu["since"][CPU])

    with loads([Load(service, "bursts", CPU), Load(hog, "hog", CPU)]) as running:
        running.start()
        first, first_ns, first_most = counted_ns()
        eventually("waits", groups.waited(service, least=WAITS))
        last, last_ns, last_most = counted_ns()
        running.stop()
    assert last - first_most <= last_ns - first_ns <= last_most - first


@thorough
def test_histogram_holds_every_wait(probe: SchedProbe, groups: Groups) -> None:
    reading, service, _ = groups.beside_hog(CPU, WAITS)
    sample = groups.sample(reading, service)
    assert sample.runq_histogram is not None and sample.wait_total_ns is not None
    bounds = zip(sample.runq_histogram, LOWER_NS, UPPER_NS, strict=True)
    low_ns, high_ns = np.sum([(n * low, n * high) for n, low, high in bounds], axis=0).tolist()
    assert low_ns <= sample.wait_total_ns
    # The last bucket has no upper bound.
    assert sample.wait_total_ns <= high_ns or sample.runq_histogram[BUCKETS - 1]


def blamed_loads(groups: Groups) -> tuple[Path, dict[str, Path], list[Load]]:
    """Make a service beside a hog, three that hardly run and a hog on another CPU."""
    service = groups.make("service", latency=True)
    names = ("hog", "quiet1", "quiet2", "quiet3", "elsewhere")
    others = {name: groups.make(name, latency=False) for name in names}
    wanted = [Load(service, "bursts", CPU), Load(others["hog"], "hog", CPU)]
    wanted += [Load(others[name], "idle", CPU) for name in names[1:4]]
    wanted += [Load(others["elsewhere"], "hog", cpu) for cpu in os.sched_getaffinity(0) - {CPU}]
    return service, others, wanted


# The whole path of the probe, from the switches to the reading.
@pytest.mark.parametrize(
    "probe", [True, pytest.param(False, marks=thorough)], ids=["typed", "untyped"], indirect=True
)
def test_blame_names_the_hog_among_five(probe: SchedProbe, groups: Groups) -> None:
    service, others, wanted = blamed_loads(groups)
    # Those that hardly run do not run at all: how long a share of a CPU is, the machine decides.
    with loads([each for each in wanted if each.kind != "idle"]) as running:
        running.work_until("waits", groups.waited(service, least=WAITS))
        reading = probe.poll()
    groups.assert_complete(reading, service)
    blames = {name: groups.blame(reading, service, path) for name, path in others.items()}
    assert blames.pop("hog") > 0
    assert set(blames.values()) == {0}


@timed
@TYPED
def test_nine_tenths_of_what_is_known_is_blamed_on_the_hog(
    probe: SchedProbe, groups: Groups
) -> None:
    service, others, wanted = blamed_loads(groups)
    with loads(wanted, seconds=3) as running:
        running.work()
        reading = probe.poll()
    inflicted_ns = groups.sample(reading, service).wait_inflicted_ns
    assert inflicted_ns is not None and inflicted_ns > 50_000_000
    # Waits caused by other processes of the machine: in no workload, or before what the ring holds.
    outside_ns = sum(each.wait_ns for each in reading.blame if each.culprit is None)
    assert groups.blame(reading, service, others["hog"]) >= 0.9 * (inflicted_ns - outside_ns)


@thorough
def test_a_service_that_waits_for_itself_blames_no_other_workload(
    probe: SchedProbe, groups: Groups
) -> None:
    service = groups.make("service", latency=True)
    groups.make("quiet", latency=False)

    def others_ran_ns() -> int:
        (own,) = probe.slots_of([groups.id(service)])
        return int(probe._accounts[:, CPU, 0].sum() - probe._accounts[own, CPU, 0])

    with loads([Load(service, "hog", CPU)] * 3) as running:
        first_ns, first = others_ran_ns(), probe.poll()
        running.work_until("waits", groups.waited(service, least=WAITS))
        last, last_ns = probe.poll(), others_ran_ns()
    groups.assert_complete(last, service)
    assert {each.culprit for each in last.blame} <= {None}
    old, new = groups.sample(first, service), groups.sample(last, service)
    parts = ("wait_total_ns", "wait_inflicted_ns", "wait_host_ns")
    waited_ns, inflicted_ns, host_ns = (getattr(new, p) - getattr(old, p) for p in parts)
    # Each waits for the two others, and all wait while another task runs.
    assert waited_ns > inflicted_ns + host_ns
    known_ns = [sum(e.wait_ns for e in reading.blame if e.known) for reading in (first, last)]
    assert known_ns[1] - known_ns[0] <= 3 * (last_ns - first_ns)


def miss_switches(probe: SchedProbe, number: int) -> None:
    """Change the probe's memory as if other tasks than the running ones had been picked last.

    Until the probe has found *number* of such switches.
    """
    cpu = probe._cpus.values
    before, stop_s = int(cpu["missed"][CPU]), time.monotonic() + DEADLINE_S
    while cpu["missed"][CPU] < before + number:
        assert time.monotonic() < stop_s, "missed switches are not found"
        cpu["running"][CPU], cpu["slot"][CPU] = 1, SLOT_SYSTEM
        time.sleep(0.0005)


@thorough
def test_on_cpu_time_is_counted_in_spite_of_missed_switches(
    probe: SchedProbe, groups: Groups
) -> None:
    service = groups.make("service", latency=True)
    with loads([Load(service, "bursts", CPU)]) as running:
        before, first = running.schedstat(service).oncpu_ns, groups.counted(service).oncpu_ns
        running.start()
        miss_switches(probe, 200)
        running.stop()
        ran_ns = running.schedstat(service).oncpu_ns - before
        last = groups.counted(service).oncpu_ns
    assert first is not None and last is not None
    # Now and then the memory is changed during a switch, and a run is lost. Without the correction
    # nearly all of them are.
    assert last - first > ran_ns / 2


@timed
def test_on_cpu_time_is_right_in_spite_of_missed_switches(
    probe: SchedProbe, groups: Groups
) -> None:
    service = groups.make("service", latency=True)
    with loads([Load(service, "bursts", CPU)]) as running:
        before, first, steal = running.schedstat(service).oncpu_ns, probe.poll(), Steal()
        running.start()
        miss_switches(probe, 400)
        running.stop()
        after, last = running.schedstat(service).oncpu_ns, probe.poll()
    old, new = groups.sample(first, service), groups.sample(last, service)
    assert old.oncpu_ns is not None and new.oncpu_ns is not None
    steal.assert_equal(new.oncpu_ns - old.oncpu_ns, after - before, rel=0.02)


def throttled_ns(cgroup: Path) -> int:
    """Return the time for which the kernel throttled *cgroup*."""
    stat = dict(line.split() for line in (cgroup / "cpu.stat").read_text().splitlines())
    if "throttled_usec" in stat:
        return 1000 * int(stat["throttled_usec"])
    return int(stat["throttled_time"])


@thorough
@TYPED
@pytest.mark.parametrize("limited", ["service", "service/container"])
def test_own_quota_is_waiting_but_not_inflicted(
    probe: SchedProbe, groups: Groups, cgroup_root: Path, cgroup_layout: CgroupLayout, limited: str
) -> None:
    outweigh(cgroup_root, 100)  # otherwise other work uses the time before the quota bites
    service = groups.make("service", latency=True)
    container = groups.make("service/container")
    limited_at = {"service": service, "service/container": container}[limited]
    set_quota(limited_at, 2000, 20000)
    with loads([Load(container, "hog", CPU), Load(container, "hog", CPU)]) as running:
        running.work_until("throttling", lambda: throttled_ns(limited_at) > 500_000_000)
        reading = probe.poll()
    groups.assert_complete(reading, service)
    assert {e.culprit for e in reading.blame if e.victim == groups.id(service)} <= {None}
    # Both tasks wait while the kernel throttles them: about twice the time, less what switches hide
    # that the kernel does not trace. A probe that does not know the throttling counts nothing.
    seen_ns = groups.sample(reading, service).throttled_ns
    assert seen_ns is not None and seen_ns > throttled_ns(limited_at) / 4


@thorough
def test_own_quota_beside_a_hog_is_not_blamed_on_the_hog(
    probe: SchedProbe, groups: Groups, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    outweigh(cgroup_root, 100)  # otherwise other work uses the time before the quota bites
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    set_quota(service, 2000, 20000)
    with loads([Load(service, "hog", CPU), Load(hog, "hog", CPU)]) as running:
        running.work_until("throttling", lambda: throttled_ns(service) > 500_000_000)
        reading = probe.poll()
    # So what is blamed on the hog, which runs all the time, contains no throttled time. After each
    # throttling the hog is in the middle of a slice: that part is blamed on the hog.
    groups.assert_complete(reading, service)
    seen_ns = groups.sample(reading, service).throttled_ns
    assert seen_ns is not None and seen_ns > throttled_ns(service) / 4


@thorough
def test_throttling_of_the_past_hides_no_wait(
    cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    outweigh(cgroup_root, 100)  # the waits are shorter than the throttling of the past
    service = cgroup_root / "service"
    service.mkdir()
    set_quota(service, 2000, 200_000)
    with loads([Load(service, "hog", CPU)]) as running:
        running.work_until("throttling", lambda: throttled_ns(service) > 1_000_000_000)
    set_quota(service, None, 200_000)
    # The kernel keeps the sum, and the probe finds it at the first long wait: the same as after
    # another group took the entry in the probe's map.
    probe = SchedProbe(cpus=max(possible_cpus()) + 1)
    try:
        groups = Groups(cgroup_root, cgroup_layout, probe)
        groups.assign(service, latency=True)
        hog = groups.make("hog", latency=False)
        reading = None

        def waited() -> bool:
            # On a busy machine the first waits may be for others. The throttling of the past, of
            # more than a second, would hide all of these.
            nonlocal reading
            reading = probe.poll()
            waited_ns = groups.sample(reading, service).wait_total_ns or 0
            return groups.blame(reading, service, hog) > 0 or waited_ns > 900_000_000

        with loads([Load(service, "hog", CPU), Load(hog, "hog", CPU)]) as running:
            running.work_until("waits", waited)
    finally:
        probe.close()
    assert reading is not None and groups.blame(reading, service, hog) > 0
    assert groups.sample(reading, service).throttled_ns == 0


@thorough
def test_nested_cgroups_belong_to_their_workload(probe: SchedProbe, groups: Groups) -> None:
    outer = groups.make("outer", latency=True)
    with loads([Load(groups.make("outer/made/later"), "hog", CPU)]) as running:
        groups.assert_runs_counted(running, outer)
