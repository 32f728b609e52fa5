# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Kills at random steps over knobs of memory on cgroup v2.

The test is that of ``tests/kernel``, repeated in the guest.
"""

from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel import test_memory_kills as kills

pytestmark = pytest.mark.vm


@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.soak)])
def test_memory_knobs_are_as_before_after_random_kills(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path, count: int
) -> None:
    kills.check(cgroup_layout, cgroup_root, tmp_path, count)
