# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time per packet, from real traffic to the indicator, compared with schedstat."""

from collections.abc import Iterator
import contextlib
from dataclasses import replace
from pathlib import Path
import time

import pytest

from controller.agent.sampler import Sampler
from controller.core.decision import Indicator
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.model import CgroupId, IndicatorName, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex
from controller.host.facts import CgroupLayout
from tests.kernel.loads import schedstat
from tests.kernel.samplers import open_sampler
from tests.kernel.steal import Steal
from tests.kernel.talkers import Talker
from tests.support.cgroups import remove_cgroup
from tests.support.loops.closed_loop import TICK_NS, make_settings, make_spec

pytestmark = pytest.mark.kernel

SERVICE = "served"
TICKS = 20
WINDOW_NS = 2 * NS_PER_SEC


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

    def __init__(self, sampler: Sampler, layout: CgroupLayout, path: Path) -> None:
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
        self._spec = replace(make_spec(), name=name, window_ns=WINDOW_NS, min_samples=100)
        profile = replace(make_settings().profiles["default"], indicators=(self._spec,))
        self._workload_index = WorkloadIndex([workload], {"default": profile})
        self._tracker = IndicatorTracker()
        self._last_ns = 0
        sampler.set_workloads((workload,))

    def read(self) -> tuple[Indicator | None, int]:
        """Return the indicator, and the packets of both directions so far."""
        snapshot = self._sampler.poll()
        dt_ns = snapshot.time_ns - self._last_ns if self._last_ns else 0
        self._last_ns = snapshot.time_ns
        self._tracker.update(snapshot, self._workload_index, dt_ns, 2 * TICK_NS, 10 * TICK_NS)
        (sample,) = snapshot.workloads
        assert sample.tx_packets is not None and sample.rx_packets is not None
        indicator = self._tracker.indicator(self._workload_index.services[SERVICE], self._spec)
        return indicator, sample.tx_packets + sample.rx_packets


@pytest.mark.parametrize("work_us", [50, 500])
def test_the_indicator_equals_the_cpu_time_that_each_packet_costs(
    work_us: int, sampler: Sampler, cgroup_layout: CgroupLayout, cgroups: tuple[Path, Path]
) -> None:
    in_cpu, in_cgroup2 = cgroups
    meter = Meter(sampler, cgroup_layout, in_cpu)
    server = Talker(in_cgroup2, "serve", count=work_us)
    with contextlib.ExitStack() as stack:
        stack.callback(server.end)
        (in_cpu / "cgroup.procs").write_text(str(server.pid))
        # More requests than the test lasts for.
        client = Talker(
            in_cgroup2.with_name("client"), "ask", port=int(server.first), size=9, count=10**9
        )
        stack.callback(client.end)
        client.go()
        counts, steal = [], Steal()
        for _ in range(TICKS):
            time.sleep(TICK_NS / NS_PER_SEC)
            indicator, packets = meter.read()
            counts.append((schedstat(server.pid).oncpu_ns, packets))
    (then_ns, before), (now_ns, after) = counts[-1 - WINDOW_NS // TICK_NS], counts[-1]
    packets = after - before
    assert packets >= 1000
    assert indicator is not None and indicator.value is not None
    print(f"{work_us} us of work: {indicator.value:.0f} ns per packet, {packets} packets")
    steal.assert_equal(round(indicator.value * packets), now_ns - then_ns, rel=0.05)
    # Two packets for each request; the system calls come in addition to the work.
    assert 500 * work_us <= indicator.value
    assert now_ns - then_ns < (500 * work_us + 60_000) * packets
