# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Waits timed with wakeup stamps on pure cgroup v2 and another kernel version."""

from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf.btf import Btf
from controller.probes.sched import SchedProbe
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU
from tests.kernel.without import btf_without_sched_info

pytestmark = pytest.mark.vm


def test_waits_are_counted_and_blamed(
    cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    btf = Btf(btf_without_sched_info(tmp_path))
    probe = SchedProbe(cpus=max(possible_cpus()) + 1, btf=btf)
    try:
        assert "sched_info" in probe.fallback
        groups = Groups(cgroup_root, cgroup_layout, probe)
        service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
        with loads([Load(service, "bursts", CPU), Load(hog, "hog", CPU)]) as running:
            running.work_until("waits", groups.waited(service, least=20))
            reading = probe.poll()
        groups.assert_complete(reading, service)
        assert groups.blame(reading, service, hog) > 0
    finally:
        probe.close()
