# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One quota for many workloads on pure cgroup v2, with the test of ``tests/kernel``."""

from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel import test_many_hogs as many_hogs

pytestmark = pytest.mark.vm


def test_a_full_squeeze_of_many_hogs(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    many_hogs.test_a_full_squeeze_of_many_hogs(cgroup_layout, cgroup_root, tmp_path)
