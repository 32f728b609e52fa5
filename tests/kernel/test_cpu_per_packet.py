# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time per packet, from real traffic to the indicator, compared with schedstat."""

from collections.abc import Iterator
import contextlib
from dataclasses import replace
import itertools
from pathlib import Path
import time
from typing import NamedTuple

import pytest

from controller.agent.sampler import Sampler
from controller.core.decision import Indicator
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.model import CgroupId, IndicatorName, QosClass, Workload, WorkloadSample
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex
from controller.host.facts import CgroupLayout
from tests.kernel.loads import Schedstat, is_blocked, schedstat
from tests.kernel.samplers import open_sampler
from tests.kernel.steal import Steal
from tests.kernel.talkers import Talker
from tests.support.cgroups import remove_cgroup
from tests.support.loops.closed_loop import TICK_NS, make_settings, make_spec
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

SERVICE = "served"
TICKS = 20
WINDOW_NS = 2 * NS_PER_SEC
# Requests in a window, of two packets each, and its length on a clock of the test: they take more
# than a hundredth of a CPU, without which there is no value.
REQUESTS, STEP_NS = 60, 50_000_000


@pytest.fixture
def sampler(cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Sampler]:
    with open_sampler(cgroup_layout, tmp_path) as sampler:
        yield sampler


@pytest.fixture
def cgroups(cgroup_layout: CgroupLayout, cgroup_root: Path) -> Iterator[tuple[Path, Path]]:
    """The service's cgroup in the cpu hierarchy and in the cgroup2 tree, at the same path."""
    if cgroup_layout.unified is None:
        pytest.skip("no cgroup2 tree is mounted")
    root = cgroup_layout.unified / cgroup_root.name
    paths = cgroup_root / SERVICE, root / SERVICE
    for path in (*paths, root / "client"):
        path.mkdir(parents=True, exist_ok=True)
    yield paths
    remove_cgroup(root)


class Meter:
    """The indicator of the service in the cgroup *path*; ``read`` is a tick."""

    def __init__(self, sampler: Sampler, layout: CgroupLayout, path: Path, window_ns: int) -> None:
        self._sampler = sampler
        workload = Workload(
            name=SERVICE,
            cgroup=CgroupId(layout.hierarchy, path.stat().st_ino),
            path=f"/{path.relative_to(layout.mount)}",
            qos=QosClass.LS,
            service=SERVICE,
            profile="default",
        )
        name = IndicatorName.CPU_PER_PACKET
        self._spec = replace(make_spec(), name=name, window_ns=window_ns, min_samples=100)
        profile = replace(make_settings().profiles["default"], indicators=(self._spec,))
        self._workload_index = WorkloadIndex([workload], {"default": profile})
        self._tracker = IndicatorTracker()
        self._last_ns = 0
        sampler.set_workloads((workload,))

    def read(self, now_ns: int | None = None) -> tuple[Indicator | None, WorkloadSample]:
        """Return the indicator, as if the time was *now_ns*, and what was counted so far."""
        snapshot = self._sampler.poll()
        if now_ns is not None:
            snapshot = replace(snapshot, time_ns=now_ns, age_ns=0)
        dt_ns = snapshot.time_ns - self._last_ns if self._last_ns else 0
        self._last_ns = snapshot.time_ns
        self._tracker.update(snapshot, self._workload_index, dt_ns, 2 * TICK_NS, 2 * WINDOW_NS)
        (sample,) = snapshot.workloads
        indicator = self._tracker.indicator(self._workload_index.services[SERVICE], self._spec)
        return indicator, sample

    @property
    def missed_switches(self) -> int:
        """Switches before the last ``read`` for which the kernel did not fire the tracepoint."""
        assert self._sampler.reading is not None
        return self._sampler.reading.missed_switches


def packets_of(sample: WorkloadSample) -> int:
    """Return the packets of both directions."""
    assert sample.tx_packets is not None and sample.rx_packets is not None
    return sample.tx_packets + sample.rx_packets


@contextlib.contextmanager
def serving(cgroups: tuple[Path, Path], work_us: int) -> Iterator[Talker]:
    """Run a server that works for *work_us* on each request."""
    in_cpu, in_cgroup2 = cgroups
    with Talker(in_cgroup2, "serve", count=work_us) as server:
        (in_cpu / "cgroup.procs").write_text(str(server.pid))
        yield server


def client(cgroups: tuple[Path, Path], server: Talker, requests: int) -> Talker:
    """Return a client that makes *requests* one after the other."""
    cgroup = cgroups[1].with_name("client")
    return Talker(cgroup, "ask", port=int(server.first), size=9, count=requests)


class Counted(NamedTuple):
    """The indicator of the last window, and the counts of probe and kernel at its end."""

    indicator: Indicator | None
    sample: WorkloadSample
    kernel: Schedstat
    missed_switches: int

    def grown(self, before: "Counted", field: str) -> int:
        """Return what the counter *field* of the sample grew by."""
        return int(getattr(self.sample, field)) - int(getattr(before.sample, field))


# The whole path, from real traffic to the indicator.
@pytest.mark.parametrize("work_us", [50, pytest.param(500, marks=pytest.mark.thorough)])
def test_the_indicator_is_the_cpu_time_by_the_packets(
    work_us: int, sampler: Sampler, cgroup_layout: CgroupLayout, cgroups: tuple[Path, Path]
) -> None:
    meter, times_ns = Meter(sampler, cgroup_layout, cgroups[0], STEP_NS), itertools.count(1)

    def count(server: Talker) -> Counted:
        eventually("the server waits for a request", lambda: is_blocked(server.pid))
        indicator, sample = meter.read(next(times_ns) * STEP_NS)
        return Counted(indicator, sample, schedstat(server.pid), meter.missed_switches)

    def ask(server: Talker) -> bool:
        """Return whether the probe saw all switches to the server in one window."""
        before = count(server)
        with client(cgroups, server, REQUESTS) as asking:
            asking.go()
            asking.done()
        after = count(server)
        kernel, ran_ns = after.kernel.since(before.kernel), after.grown(before, "oncpu_ns")
        assert packets_of(after.sample) - packets_of(before.sample) == 2 * REQUESTS
        assert after.indicator is not None and after.indicator.value is not None
        assert after.indicator.value == pytest.approx(ran_ns / (2 * REQUESTS))
        # The system calls come in addition to the work, and the probe counts what the hypervisor
        # took. Where the kernel fired no tracepoint for a switch, a run may be missing.
        saw_all = after.missed_switches == before.missed_switches
        saw_all = saw_all or after.grown(before, "waits") == kernel.runs
        assert ran_ns >= kernel.oncpu_ns >= REQUESTS * work_us * 1000 or not saw_all
        return saw_all

    with serving(cgroups, work_us) as server:
        for _ in range(3):
            eventually("a window without a missed switch", lambda: ask(server))


@pytest.mark.timed
@pytest.mark.parametrize("work_us", [50, 500])
def test_the_indicator_equals_the_cpu_time_that_each_packet_costs(
    work_us: int, sampler: Sampler, cgroup_layout: CgroupLayout, cgroups: tuple[Path, Path]
) -> None:
    meter = Meter(sampler, cgroup_layout, cgroups[0], WINDOW_NS)
    # More requests than the test lasts for.
    with serving(cgroups, work_us) as server, client(cgroups, server, 10**9) as asking:
        asking.go()
        counts, steal = [], Steal()
        for _ in range(TICKS):
            time.sleep(TICK_NS / NS_PER_SEC)
            indicator, sample = meter.read()
            counts.append((schedstat(server.pid).oncpu_ns, packets_of(sample)))
    (then_ns, before), (now_ns, after) = counts[-1 - WINDOW_NS // TICK_NS], counts[-1]
    packets = after - before
    assert packets >= 1000
    assert indicator is not None and indicator.value is not None
    print(f"{work_us} us of work: {indicator.value:.0f} ns per packet, {packets} packets")
    steal.assert_equal(round(indicator.value * packets), now_ns - then_ns, rel=0.05)
    # Two packets for each request; the system calls come in addition to the work.
    assert 500 * work_us <= indicator.value
    assert now_ns - then_ns < (500 * work_us + 60_000) * packets
