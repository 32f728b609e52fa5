# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Waits timed with wakeup stamps, as on a kernel without sched_info, against /proc/PID/schedstat.

The running kernel has sched_info; the test removes it from a copy of the kernel's BTF.
"""

from collections.abc import Iterator
import os
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf.btf import Btf
from controller.probes.sched import SchedProbe
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads
from tests.kernel.without import btf_without_sched_info

pytestmark = pytest.mark.kernel

CPU = max(os.sched_getaffinity(0))


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[SchedProbe]:
    btf = Btf(btf_without_sched_info(tmp_path))
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, btf=btf)
    yield loaded
    loaded.close()


@pytest.fixture
def groups(cgroup_root: Path, cgroup_layout: CgroupLayout, probe: SchedProbe) -> Groups:
    return Groups(cgroup_root, cgroup_layout, probe)


MIXES = {
    "hogs on one CPU": [("a", "hog", CPU), ("b", "hog", CPU), ("b", "hog", CPU)],
    "sleepers on one CPU": [("a", "bursts", CPU)] * 4 + [("b", "hog", CPU)],
    # sched_info restarts a wait at a migration; a stamp is kept.
    "changing their CPU": [("a", "roam", -1), ("b", "roam", -1), ("b", "roam", -1)],
}


@pytest.mark.parametrize("mix", MIXES)
def test_agrees_with_schedstat_within_one_percent(
    mix: str, probe: SchedProbe, groups: Groups
) -> None:
    assert "sched_info" in probe.fallback
    cgroups = {name: groups.make(name, latency=name == "a") for name in "ab"}
    wanted = [Load(cgroups[name], kind, cpu) for name, kind, cpu in MIXES[mix]]
    with loads(wanted, seconds=2) as running:
        groups.assert_agree(probe, running, cgroups.values())


def test_histogram_and_blame_are_the_same(probe: SchedProbe, groups: Groups) -> None:
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    with loads([Load(service, "bursts", CPU), Load(hog, "hog", CPU)], seconds=2) as running:
        running.work()
        reading = probe.poll()
        sample = groups.sample(reading, service)
    assert sample.runq_histogram is not None and sample.waits is not None
    assert sum(sample.runq_histogram) == sample.waits
    assert sample.wait_inflicted_ns is not None and sample.wait_inflicted_ns > 50_000_000
    # Waits caused by the machine's other processes, which are in no workload, are not the hog's.
    system_ns = sum(b.wait_ns for b in reading.blame if b.culprit is None and b.known)
    assert groups.blame(reading, service, hog) >= 0.9 * (sample.wait_inflicted_ns - system_ns)
    assert sum(b.wait_ns for b in reading.blame) == pytest.approx(
        sample.wait_inflicted_ns, rel=0.001
    )
