# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Times in which a CPU stood still, as the sched probe sees them: no workload is blamed."""

import os
from pathlib import Path
import threading
import time

import numpy as np
import pytest

from controller.host.facts import possible_cpus
from controller.probes.bpf.btf import Btf, BtfError
from controller.probes.bpf.mapped_array import MappedArray
from controller.probes.sched import SchedProbe
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads
from tests.kernel.overload import outweigh
from tests.kernel.steal import Steal

pytestmark = pytest.mark.kernel

CPU = max(os.sched_getaffinity(0))
# struct stalls of bpf/include/stalls.h.
STALLS = np.dtype(
    [
        ("next", "u8"),
        ("stolen", "u8"),
        ("read_at", "u8"),
        ("interval", [("start", "u8"), ("end", "u8")], 8),
    ]
)


# Both variants of reading kernel memory.
TYPED = pytest.mark.parametrize("probe", [True, False], ids=["typed", "untyped"], indirect=True)


def stalls_of(probe: SchedProbe) -> MappedArray:
    return MappedArray(probe._loaded.map_fds["stalls"], STALLS, max(possible_cpus()) + 1)


def need_stolen_time() -> None:
    try:
        Btf().offset("rq", "prev_steal_time_rq")
    except BtfError as error:
        pytest.skip(str(error))


@TYPED
def test_no_work_is_blamed_while_the_cpu_stands_still(probe: SchedProbe, groups: Groups) -> None:
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    # As if timers had shown one stall that lasts since boot.
    stalls_of(probe).values["interval"]["end"][CPU] = 1 << 62
    with loads([Load(service, "bursts", CPU), Load(hog, "hog", CPU)], seconds=2) as running:
        running.work()
        reading = probe.poll()
    sample = groups.sample(reading, service)
    assert sample.wait_host_ns is not None and sample.wait_host_ns > 50_000_000
    assert sample.wait_inflicted_ns is not None
    assert sample.wait_inflicted_ns < 0.05 * sample.wait_host_ns
    assert groups.blame(reading, service, hog) < 0.05 * sample.wait_host_ns


@TYPED
def test_no_work_is_blamed_for_stolen_time(probe: SchedProbe, groups: Groups) -> None:
    need_stolen_time()
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    known, stop = stalls_of(probe).values["stolen"][CPU : CPU + 1], threading.Event()
    at_switch = probe._cpus.values["stolen"][CPU : CPU + 1]

    def steal() -> None:
        # As if all time was stolen. The kernel may write at the same time: one of many is lost.
        while not stop.wait(0.001):
            known[:] -= 3_000_000
            at_switch[:] -= 3_000_000

    with loads([Load(service, "bursts", CPU), Load(hog, "hog", CPU)], seconds=2) as running:
        thread = threading.Thread(target=steal)
        thread.start()
        try:
            running.work()
        finally:
            stop.set()
            thread.join()
        sample = groups.sample(probe.poll(), service)
    assert sample.wait_host_ns is not None and sample.wait_inflicted_ns is not None
    print(f"host {sample.wait_host_ns / 1e9:.3f} s, inflicted {sample.wait_inflicted_ns / 1e9:.3f}")
    assert sample.wait_host_ns > 50_000_000
    assert sample.wait_inflicted_ns < 0.3 * sample.wait_host_ns


@TYPED
def test_stolen_time_is_placed_by_the_tick_during_a_long_run(
    probe: SchedProbe, groups: Groups
) -> None:
    need_stolen_time()
    known = stalls_of(probe).values
    hog = Load(groups.make("hog", latency=False), "hog", CPU)
    with loads([hog], seconds=2) as running:
        running.start()
        time.sleep(1)
        began_ns = time.monotonic_ns()
        known["stolen"][CPU : CPU + 1] -= 500_000
        time.sleep(0.5)
        intervals = known["interval"][CPU].copy()
    found = [
        (int(each["start"]), int(each["end"])) for each in intervals if each["end"] >= began_ns
    ]
    print([(start - began_ns, end - start) for start, end in found])
    start_ns, end_ns = min(found)
    assert end_ns - began_ns < 50_000_000
    assert end_ns - start_ns < 5_000_000


def test_stolen_time_is_that_of_the_kernels_account(probe: SchedProbe, groups: Groups) -> None:
    need_stolen_time()
    hogs = [Load(groups.make("hog", latency=False), "hog")] * len(os.sched_getaffinity(0))
    known = stalls_of(probe).values["stolen"]
    with loads(hogs, seconds=2) as running:
        before, steal = known.copy(), Steal()
        running.work()
        stolen_ns = int((known - before)[before > 0].sum())
        taken_ns = steal.taken_ns()
    print(f"stolen {stolen_ns / 1e6:.1f} ms, of the kernel {taken_ns / 1e6:.1f} ms")
    assert abs(stolen_ns - taken_ns) <= 0.1 * taken_ns + 50_000_000


@TYPED
def test_a_program_cannot_make_its_cpu_stand_still(
    probe: SchedProbe, groups: Groups, cgroup_root: Path
) -> None:
    outweigh(cgroup_root, 100)
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    wanted = [Load(service, "bursts", CPU), Load(hog, "late timers", CPU)]
    with loads(wanted, seconds=2) as running:
        steal = Steal()
        running.work()
        sample = groups.sample(probe.poll(), service)
    assert sample.wait_total_ns is not None and sample.wait_host_ns is not None
    print(f"host {sample.wait_host_ns / sample.wait_total_ns:.0%} of the wait")
    assert sample.wait_total_ns > 50_000_000
    # Real stalls count, as a third of the wait did here when those timers did.
    real = 2 * (1 - steal.left_ratio())
    assert sample.wait_host_ns < (0.15 + real) * sample.wait_total_ns
