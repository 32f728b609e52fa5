# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Counters of CPUs that go offline and online again, which disturbs no other work in the guest."""

from collections.abc import Iterator
from pathlib import Path
import time

import pytest

from controller.host.facts import CgroupLayout, online_cpus, possible_cpus
from controller.probes.counters import choose_sources
from controller.probes.sched import SchedProbe
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads

pytestmark = pytest.mark.vm

CPU = max(online_cpus())
SWITCH = Path(f"/sys/devices/system/cpu/cpu{CPU}/online")
REFRESH_S = 1.1


@pytest.fixture
def probe() -> Iterator[SchedProbe]:
    sources, reasons = choose_sources({"instructions": "cpu-clock"})
    assert reasons == {}
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, counters=sources)
    yield loaded
    SWITCH.write_text("1")
    loaded.close()


def test_a_cpu_that_was_off_is_counted_again(
    probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    groups = Groups(cgroup_root, cgroup_layout, probe)
    for number, off_s in enumerate((3 * REFRESH_S, 0.0)):
        # Offline for long enough to be detected, and then too shortly to be detected.
        probe.poll()
        SWITCH.write_text("0")
        end = time.monotonic() + off_s
        while time.monotonic() < end:
            probe.poll()
            time.sleep(0.2)
        SWITCH.write_text("1")
        _detect_dead_event(probe)
        path = groups.make(f"job{number}", latency=False)
        with loads([Load(path, "hog", CPU)], seconds=2) as running:
            before = running.schedstat(path).oncpu_ns
            first = groups.sample(probe.poll(), path).instructions
            running.work()
            ran_ns = running.schedstat(path).oncpu_ns - before
            probe.counted()
            time.sleep(REFRESH_S)
            last = groups.sample(probe.poll(), path).instructions
        assert first is not None and last is not None
        assert last - first == pytest.approx(ran_ns, rel=0.05)


def _detect_dead_event(probe: SchedProbe) -> None:
    """A dead event is detected when its CPU reads the event's times, which counted() causes."""
    for _ in range(3):
        probe.counted()
        time.sleep(REFRESH_S)
        probe.poll()
