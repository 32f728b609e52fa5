# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Perf counters per workload, with sources whose correct values are known on any machine.

With the time stamp counter as cycles and the CPU clock in nanoseconds as instructions, the CPI of
every program is the frequency of the time stamp counter in GHz.
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
from tests.kernel.loads import Load, loads
from tests.kernel.steal import Steal

pytestmark = pytest.mark.kernel

CPU = max(os.sched_getaffinity(0))
WANTED = {"cycles": "msr/tsc/", "instructions": "cpu-clock", "llc_misses": "context-switches"}
# Counters are updated once a second.
SETTLE_S = 1.1


@pytest.fixture
def probe() -> Iterator[SchedProbe]:
    sources, reasons = choose_sources(WANTED)
    assert reasons == {}
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, counters=sources)
    yield loaded
    loaded.close()


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


def test_workloads_and_idle_are_the_whole_machine(
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


def test_a_workload_that_never_leaves_its_cpu_is_counted(
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


def test_a_reused_slot_starts_at_zero(
    probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    old = assigned(probe, cgroup_layout, cgroup_root / "a")
    with loads([Load(cgroup_root / "a", "hog", CPU)], seconds=1) as running:
        running.work()
        assert (sample(settled(probe), old).instructions or 0) > 50_000_000
    (cgroup_root / "a").rmdir()
    probe.release(old, now_ns=time.monotonic_ns())
    # Late enough for the freed slot to be reused.
    later_ns = time.monotonic_ns() + 10_000_000_000
    (cgroup_root / "b").mkdir()
    new = CgroupId(cgroup_layout.hierarchy, (cgroup_root / "b").stat().st_ino)
    assert probe.assign(new, latency=False, now_ns=later_ns)
    counted = sample(settled(probe), new)
    assert (counted.cycles, counted.instructions, counted.llc_misses) == (0, 0, 0)
