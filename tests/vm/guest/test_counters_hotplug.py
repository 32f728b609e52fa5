# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Counters of CPUs that go offline and online again, which disturbs no other work in the guest."""

from pathlib import Path
import time

import pytest

from controller.host.facts import CgroupLayout, online_cpus
from controller.probes.sched import SchedProbe
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads
from tests.support.waiting import eventually

pytestmark = pytest.mark.vm

CPU = max(online_cpus())
SWITCH = Path(f"/sys/devices/system/cpu/cpu{CPU}/online")
# Offline for long enough to be detected, and too shortly to be detected.
CASES = pytest.mark.parametrize("detected", [True, False])


def switch(probe: SchedProbe, *, detected: bool) -> None:
    """Switch the CPU off and on again."""
    counters = probe._counters
    assert counters is not None
    eventually("counters of the CPU", lambda: probe.poll() and CPU in counters._counted)
    SWITCH.write_text("0")
    try:
        if detected:
            eventually("no counters", lambda: probe.poll() and CPU not in counters._counted)
    finally:
        SWITCH.write_text("1")


def counts(probe: SchedProbe, groups: Groups, path: Path) -> int:
    """Return the instructions of *path* so far.

    A dead event is detected when its CPU reads the event's times, which ``counted`` causes.
    """
    probe.counted()
    return groups.counted(path).instructions or 0


@CASES
def test_a_cpu_that_was_off_is_counted_again(
    counting_probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout, detected: bool
) -> None:
    groups = Groups(cgroup_root, cgroup_layout, counting_probe)
    switch(counting_probe, detected=detected)
    path = groups.make("job", latency=False)
    with loads([Load(path, "hog", CPU)]) as running:
        assert running.work_until("counts", lambda: counts(counting_probe, groups, path)) > 0


@pytest.mark.timed
@CASES
def test_its_cpu_clock_is_its_run_time(
    counting_probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout, detected: bool
) -> None:
    groups = Groups(cgroup_root, cgroup_layout, counting_probe)
    switch(counting_probe, detected=detected)
    job, path = groups.make("job", latency=False), groups.make("measured", latency=False)
    with loads([Load(job, "hog", CPU)]) as running:
        running.work_until("counts", lambda: counts(counting_probe, groups, job))
    with loads([Load(path, "hog", CPU)], seconds=2) as running:
        before = running.schedstat(path).oncpu_ns
        first = counts(counting_probe, groups, path)
        running.work()
        ran_ns = running.schedstat(path).oncpu_ns - before
        counting_probe.counted()
        time.sleep(1.1)  # counters are updated once a second
        last = counts(counting_probe, groups, path)
    assert last - first == pytest.approx(ran_ns, rel=0.05)
