# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The knobs of the comparison on a real cgroup: what one block leaves is not in the next one."""

import math
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.compare.policies import CpuKnobs

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]


def test_a_cgroup_that_was_idle_has_its_weight_again(
    cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    job = cgroup_root / "be-job"
    job.mkdir()
    v2 = cgroup_layout.version == "v2"
    weight, lowest = ("cpu.weight", "1\n") if v2 else ("cpu.shares", "2\n")
    knobs = CpuKnobs(job, cgroup_layout.version)
    # As a block leaves it that was broken off.
    knobs.set_idle()
    knobs.set_quota(0.5)
    assert knobs.quota_cpus() == 0.5
    for _ in range(2):
        knobs.release()
        assert (job / "cpu.idle").read_text() == "0\n"
        assert (job / weight).read_text() == lowest
        assert math.isinf(knobs.quota_cpus())
        knobs.set_idle()
