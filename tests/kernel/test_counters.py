# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Perf counters per workload, with sources whose correct values are known on any machine.

With the time stamp counter as cycles and the CPU clock in nanoseconds as instructions, the CPI of
every program is the frequency of the time stamp counter in GHz. Context switches, which stand for
cache misses, are events that the kernel counts for each task as well.
"""

from collections.abc import Iterator
import os
from pathlib import Path
import struct
import time

import pytest

from controller.core.model import CgroupId, WorkloadSample
from controller.host.facts import CgroupLayout, online_cpus, possible_cpus
from controller.probes.counters import choose_sources
from controller.probes.perf import find_source, open_event
from controller.probes.sched import SchedProbe, SchedReading
from tests.kernel.groups import Groups, Round
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU
from tests.kernel.steal import Steal

pytestmark = pytest.mark.kernel
thorough, timed = pytest.mark.thorough, pytest.mark.timed

WANTED = {"cycles": "msr/tsc/", "instructions": "cpu-clock", "llc_misses": "context-switches"}
# Counters are updated once a second.
SETTLE_S = 1.1


def counting(*, max_slots: int = 1024) -> SchedProbe:
    """Return a probe that counts what is in ``WANTED``."""
    sources, reasons = choose_sources(WANTED)
    assert reasons == {}
    return SchedProbe(cpus=max(possible_cpus()) + 1, max_slots=max_slots, counters=sources)


@pytest.fixture
def probe() -> Iterator[SchedProbe]:
    loaded = counting()
    yield loaded
    loaded.close()


# The whole path of the counters, from the event to the sample.
def test_a_workload_gets_the_switches_to_its_tasks(groups: Groups) -> None:
    paths = [groups.make(name, latency=False) for name in "ab"]
    quiet = groups.make("quiet", latency=False)
    # Different numbers, because equal ones would hide wrong charges.
    wanted = [Load(paths[0], "bursts", CPU), Load(paths[1], "hog", CPU)]

    def judge(each: Round) -> bool:
        for path in paths:
            switches = groups.gained(each, "llc_misses", path)
            assert switches == each.kernel[path].runs or each.missed
            assert groups.gained(each, "cycles", path) > 0
            assert groups.gained(each, "instructions", path) > 0
        return not each.missed

    with loads([*wanted, Load(paths[1], "bursts", CPU)]) as running:
        groups.rounds(running, paths, judge)
        unused = groups.counted(quiet)
    assert (unused.cycles, unused.instructions, unused.llc_misses) == (0, 0, 0)


@thorough
def test_workloads_system_and_idle_make_all_switches_of_the_machine(
    probe: SchedProbe, groups: Groups
) -> None:
    service = groups.make("service", latency=False)

    def counted() -> tuple[int, int, int]:
        """Return the sum over all slots, between what the kernel counted before and after it."""
        return _switches(), probe.counted()["llc_misses"], _switches()

    with loads([Load(service, "bursts")]) as running:
        first_least, first, first_most = counted()
        running.work_until("waits", groups.waited(service, least=100))
        last_least, last, last_most = counted()
    assert last_least - first_most <= last - first <= last_most - first_least


def _switches() -> int:
    """Return the context switches of the machine since boot."""
    stat = Path("/proc/stat").read_text().splitlines()
    return int(next(line for line in stat if line.startswith("ctxt ")).split()[1])


@thorough
@pytest.mark.skipif(os.cpu_count() == 1, reason="a hog that runs cannot be observed on one CPU")
def test_a_workload_that_does_not_leave_its_cpu_is_counted(
    probe: SchedProbe, groups: Groups
) -> None:
    hog = groups.make("hog", latency=False)
    cpu, (slot,) = probe._cpus.values, probe.slots_of([groups.id(hog)])

    def read_twice() -> tuple[int, int] | None:
        """Return two counts; ``None`` if the CPU switched meanwhile."""
        switches = int(cpu["switches"][CPU])
        counts = [groups.counted(hog).instructions or 0 for _ in range(2)]
        stayed = cpu["slot"][CPU] == slot and cpu["switches"][CPU] == switches
        return (counts[0], counts[1]) if stayed else None

    with loads([Load(hog, "hog", CPU)]) as running:
        first, last = running.work_until("no switch", read_twice) or (0, 0)
    assert 0 < first < last


@thorough
def test_a_reused_slot_starts_at_zero(cgroup_root: Path, cgroup_layout: CgroupLayout) -> None:
    probe = counting(max_slots=4)  # one slot, so it is used again
    try:
        groups = Groups(cgroup_root, cgroup_layout, probe)
        path = groups.make("a", latency=False)
        with loads([Load(path, "bursts", CPU)]) as running:
            running.work_until("waits", groups.waited(path, least=100))
            assert (groups.counted(path).instructions or 0) > 0
        old = groups.id(path)
        path.rmdir()
        probe.release(old, now_ns=time.monotonic_ns())
        new = groups.make("b")
        # Late enough for the freed slot to be reused.
        later_ns = time.monotonic_ns() + 10_000_000_000
        assert probe.assign(groups.id(new), latency=False, now_ns=later_ns)
        counted = groups.counted(new)
    finally:
        probe.close()
    assert (counted.cycles, counted.instructions, counted.llc_misses) == (0, 0, 0)


def sample(reading: SchedReading, cgroup: CgroupId) -> WorkloadSample:
    return next(w for w in reading.workloads if w.cgroup == cgroup)


def settled(probe: SchedProbe) -> SchedReading:
    time.sleep(SETTLE_S)
    return probe.poll()


def assigned(probe: SchedProbe, layout: CgroupLayout, path: Path) -> CgroupId:
    path.mkdir()
    cgroup = CgroupId(layout.hierarchy, path.stat().st_ino)
    assert probe.assign(cgroup, latency=False, now_ns=time.monotonic_ns())
    return cgroup


def tsc_ghz() -> float:
    """Return the frequency of the time stamp counter, measured without code of the probe."""
    fd = open_event(find_source("msr/tsc/"), 0)
    try:
        began, first = time.monotonic_ns(), struct.unpack("=Q", os.read(fd, 8))[0]
        time.sleep(0.5)
        ended, last = time.monotonic_ns(), struct.unpack("=Q", os.read(fd, 8))[0]
    finally:
        os.close(fd)
    return float((last - first) / (ended - began))


@timed
def test_cpi_is_the_frequency_of_the_counter(
    probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    cgroup = assigned(probe, cgroup_layout, cgroup_root / "a")
    with loads([Load(cgroup_root / "a", "hog", CPU)], seconds=2) as running:
        running.work()
        last = sample(settled(probe), cgroup)
    assert last.cycles is not None and last.instructions is not None
    assert last.oncpu_ns is not None and last.oncpu_ns > 50_000_000
    assert last.instructions == pytest.approx(last.oncpu_ns, rel=0.02)
    assert last.cycles / last.instructions == pytest.approx(tsc_ghz(), rel=0.01)


@timed
def test_two_on_one_cpu_get_their_own_share(
    probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    paths = [cgroup_root / name for name in "ab"]
    cgroups = [assigned(probe, cgroup_layout, path) for path in paths]
    # A load of three to one, because equal shares would hide wrong charges.
    wanted = [Load(paths[0], "hog", CPU), *[Load(paths[1], "bursts", CPU)] * 2]
    with loads(wanted, seconds=3) as running:
        before_ns = [running.schedstat(path).oncpu_ns for path in paths]
        first, steal = settled(probe), Steal()
        running.work()
        after_ns = [running.schedstat(path).oncpu_ns for path in paths]
        last = settled(probe)
    for index, cgroup in enumerate(cgroups):
        old, new = sample(first, cgroup), sample(last, cgroup)
        assert old.instructions is not None and new.instructions is not None
        gained = new.instructions - old.instructions
        steal.assert_equal(gained, after_ns[index] - before_ns[index], rel=0.02)


@timed
def test_workloads_system_and_idle_are_the_time_of_the_machine(
    probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    cgroup = assigned(probe, cgroup_layout, cgroup_root / "a")
    first_ns = settled(probe).time_ns
    before = probe.counted()
    with loads([Load(cgroup_root / "a", "hog", CPU)], seconds=2) as running:
        running.work()
        last_ns = settled(probe).time_ns
        gained = probe.counted()["instructions"] - before["instructions"]
    assert gained == pytest.approx((last_ns - first_ns) * len(online_cpus()), rel=0.01)
    assert cgroup is not None


@timed
def test_counts_of_a_workload_that_never_leaves_its_cpu_are_those_of_its_run_time(
    probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    cgroup = assigned(probe, cgroup_layout, cgroup_root / "a")
    with loads([Load(cgroup_root / "a", "hog", CPU)], seconds=4) as running:
        running.start()
        time.sleep(1.0)
        first = sample(settled(probe), cgroup)
        last = sample(settled(probe), cgroup)
    assert first.instructions is not None and last.instructions is not None
    assert first.oncpu_ns is not None and last.oncpu_ns is not None
    ran_ns = last.oncpu_ns - first.oncpu_ns
    assert ran_ns > 50_000_000
    # Both values are of the same moment: counters that are due are updated at the start of a poll.
    assert last.instructions - first.instructions == pytest.approx(ran_ns, rel=0.05)
