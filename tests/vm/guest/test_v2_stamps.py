# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Accuracy of wakeup stamps on pure cgroup v2 and another kernel version."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf.btf import Btf
from controller.probes.sched import SchedProbe
from tests.kernel import test_stamps as stamps
from tests.kernel.groups import Groups
from tests.kernel.without import btf_without_sched_info

pytestmark = pytest.mark.vm


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[SchedProbe]:
    btf = Btf(btf_without_sched_info(tmp_path))
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, btf=btf)
    yield loaded
    loaded.close()


def test_agrees_with_schedstat(
    probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    groups = Groups(cgroup_root, cgroup_layout, probe)
    stamps.test_agrees_with_schedstat_within_one_percent("sleepers on one CPU", probe, groups)
