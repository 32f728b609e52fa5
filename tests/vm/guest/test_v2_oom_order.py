# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The order in which the kernel ends processes on cgroup v2.

The tests are those of ``tests/kernel``, repeated in the guest.
"""

from pathlib import Path

import pytest

from controller.core.model import Target
from controller.host.facts import CgroupLayout
from tests.kernel import conftest as fixtures
from tests.kernel import test_oom_order as order
from tests.kernel.scored import Scored

pytestmark = pytest.mark.vm

pod, target, processes = fixtures.pod, order.target, order.processes


def test_each_process_is_raised_and_gets_back_what_it_had(
    cgroup_layout: CgroupLayout, target: Target, processes: list[Scored], tmp_path: Path
) -> None:
    order.test_each_process_is_raised_and_gets_back_what_it_had(
        cgroup_layout, target, processes, tmp_path
    )


@pytest.mark.parametrize("raised", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_the_kernel_ends_best_effort_work_before_a_larger_service(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path, raised: bool
) -> None:
    order.test_the_kernel_ends_best_effort_work_before_a_larger_service(
        cgroup_layout, cgroup_root, tmp_path, raised
    )
