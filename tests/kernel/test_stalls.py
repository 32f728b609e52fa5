# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Times in which a CPU stood still, as the sched probe sees them: no workload is blamed."""

from collections.abc import Iterator
import os
from pathlib import Path
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf.btf import Btf, BtfError
from controller.probes.bpf.mapped_array import MappedArray
from controller.probes.sched import SchedProbe
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.kernel.steal import Steal
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.kernel
thorough, timed = pytest.mark.thorough, pytest.mark.timed

WAITS = 200
# struct stalls of bpf/include/stalls.h.
STALLS = np.dtype(
    [
        ("next", "u8"),
        ("stolen", "u8"),
        ("read_at", "u8"),
        ("interval", [("start", "u8"), ("end", "u8")], 8),
    ]
)
# A wait that is not longer is not looked at.
LONG_WAIT_NS = 20_000


# Both variants of reading kernel memory.
TYPED = pytest.mark.parametrize("probe", [True, False], ids=["typed", "untyped"], indirect=True)


def stalls_of(probe: SchedProbe) -> NDArray[Any]:
    cpus = max(possible_cpus()) + 1
    return MappedArray(probe._loaded.map_fds["stalls"], STALLS, cpus).values


def need_stolen_time() -> None:
    try:
        Btf().offset("rq", "prev_steal_time_rq")
    except BtfError as error:
        pytest.skip(str(error))


# The whole path: from the intervals to a service of which no wait is blamed.
@pytest.mark.parametrize(
    "probe", [True, pytest.param(False, marks=thorough)], ids=["typed", "untyped"], indirect=True
)
def test_no_work_is_blamed_while_the_cpu_stands_still(probe: SchedProbe, groups: Groups) -> None:
    # As if timers had shown one stall that lasts since boot and has not ended. All intervals are
    # it, so that a real stall changes nothing.
    stalls_of(probe)["interval"]["end"][CPU] = 1 << 62
    reading, service, hog = groups.beside_hog(CPU, WAITS)
    sample = groups.sample(reading, service)
    assert sample.wait_host_ns is not None and sample.wait_total_ns is not None
    assert sample.waits is not None
    assert sample.wait_host_ns > 0
    assert sample.wait_total_ns - sample.wait_host_ns <= sample.waits * LONG_WAIT_NS
    assert sample.wait_inflicted_ns == groups.blame(reading, service, hog) == 0


class AllTimeIsStolen(Btf):
    """A kernel whose sum of stolen time is the clock of its run queue."""

    def offset(self, struct_name: str, path: str) -> int:
        return super().offset(struct_name, "clock" if path == "prev_steal_time_rq" else path)


@pytest.fixture
def robbed(request: pytest.FixtureRequest) -> Iterator[SchedProbe]:
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, typed=request.param, btf=AllTimeIsStolen())
    yield loaded
    loaded.close()


@thorough
@pytest.mark.parametrize("robbed", [True, False], ids=["typed", "untyped"], indirect=True)
def test_stolen_time_is_the_hosts(
    robbed: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    outweigh(cgroup_root, 100)  # the waits are not longer than what the intervals hold
    groups = Groups(cgroup_root, cgroup_layout, robbed)
    reading, service, _ = groups.beside_hog(CPU, WAITS)
    sample = groups.sample(reading, service)
    assert sample.wait_host_ns is not None and sample.wait_inflicted_ns is not None
    print(f"host {sample.wait_host_ns / 1e9:.3f} s, inflicted {sample.wait_inflicted_ns / 1e9:.3f}")
    # Runs that are too short for an interval are blamed.
    assert sample.wait_host_ns > sample.wait_inflicted_ns


@thorough
@TYPED
@pytest.mark.skipif(os.cpu_count() == 1, reason="a hog that runs cannot be observed on one CPU")
def test_stolen_time_is_placed_by_the_tick_during_a_long_run(
    probe: SchedProbe, groups: Groups, cgroup_root: Path
) -> None:
    need_stolen_time()
    outweigh(cgroup_root, 100)
    cpu, known = probe._cpus.values, stalls_of(probe)[CPU : CPU + 1]
    hog = groups.make("hog", latency=False)

    def place() -> tuple[int, int] | None:
        """Let time be stolen; return its interval, ``None`` if the CPU switched meanwhile."""
        switches, number = int(cpu["switches"][CPU]), int(known["next"][0])
        read_at_ns, sum_ns = int(known["read_at"][0]), int(known["stolen"][0])
        known["stolen"] -= 500_000
        while int(known["stolen"][0]) < sum_ns:  # without a sleep, which lasts for several switches
            assert time.monotonic_ns() < read_at_ns + DEADLINE_S * 1e9, "the sum is not read"
        start, end = map(int, known["interval"][0][number % 8])
        one_more = int(known["next"][0]) == number + 1
        return (
            (start - read_at_ns, end - start)
            if one_more and cpu["switches"][CPU] == switches
            else None
        )

    with loads([Load(hog, "hog", CPU)]) as running:
        after_ns, length_ns = running.work_until("a tick without a switch", place) or (0, 0)
    # In the time since the sum was read last.
    print(after_ns, length_ns)
    assert after_ns >= 0 and length_ns > 0


@thorough
def test_the_sum_of_stolen_time_is_a_time_that_grows(probe: SchedProbe, groups: Groups) -> None:
    need_stolen_time()
    hog = groups.make("hog", latency=False)
    known = stalls_of(probe)["stolen"]
    with loads([Load(hog, "hog", cpu) for cpu in sorted(os.sched_getaffinity(0))]) as running:
        running.work_until("waits", groups.waited(hog, least=2))
        before = known.copy()
        running.work_until("waits", groups.waited(hog, least=2))
        after = known.copy()
    assert (before <= after).all()
    assert (after <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)).all()


@timed
def test_stolen_time_is_that_of_the_kernels_account(probe: SchedProbe, groups: Groups) -> None:
    need_stolen_time()
    hogs = [Load(groups.make("hog", latency=False), "hog")] * len(os.sched_getaffinity(0))
    known = stalls_of(probe)["stolen"]
    with loads(hogs, seconds=2) as running:
        before, steal = known.copy(), Steal()
        running.work()
        stolen_ns = int((known - before)[before > 0].sum())
        taken_ns = steal.taken_ns()
    print(f"stolen {stolen_ns / 1e6:.1f} ms, of the kernel {taken_ns / 1e6:.1f} ms")
    assert abs(stolen_ns - taken_ns) <= 0.1 * taken_ns + 50_000_000


def hog_with_late_timers(groups: Groups) -> tuple[Path, Path, list[Load]]:
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    return service, hog, [Load(service, "bursts", CPU), Load(hog, "late timers", CPU)]


@thorough
@TYPED
def test_timers_of_a_program_show_no_stall(
    probe: SchedProbe, groups: Groups, cgroup_root: Path
) -> None:
    outweigh(cgroup_root, 100)
    _, hog, wanted = hog_with_late_timers(groups)
    intervals = stalls_of(probe)["interval"][CPU]

    def show_none() -> bool:
        """Let the timers expire. Each is 900 ms late, and there is always one."""
        intervals["start"], intervals["end"] = 0, 0
        before_ns = running.schedstat(hog).oncpu_ns
        running.work_until(
            "timers", lambda: running.schedstat(hog).oncpu_ns - before_ns > 1_500_000_000
        )
        lengths_ns = (intervals["end"] - intervals["start"]).tolist()
        print([f"{each / 1e6:.1f} ms" for each in lengths_ns])
        return bool(max(lengths_ns) < 800_000_000)

    with loads(wanted) as running:
        # Now and then the machine really stands still for so long.
        eventually("timers without a stall", show_none)


@timed
@TYPED
def test_a_program_cannot_make_its_cpu_stand_still(
    probe: SchedProbe, groups: Groups, cgroup_root: Path
) -> None:
    outweigh(cgroup_root, 100)
    service, _, wanted = hog_with_late_timers(groups)
    with loads(wanted, seconds=2) as running:
        steal = Steal()
        running.work()
        sample = groups.counted(service)
    assert sample.wait_total_ns is not None and sample.wait_host_ns is not None
    print(f"host {sample.wait_host_ns / sample.wait_total_ns:.0%} of the wait")
    assert sample.wait_total_ns > 50_000_000
    # Real stalls count, as a third of the wait did here when those timers did.
    real = 2 * (1 - steal.left_ratio())
    assert sample.wait_host_ns < (0.15 + real) * sample.wait_total_ns
