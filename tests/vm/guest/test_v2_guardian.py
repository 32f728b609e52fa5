# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The guardian where the kernel kills all processes of a container.

The tests are those of ``tests/kernel/test_guardian.py``, repeated in the guest.
"""

from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel import test_guardian as guardian

pytestmark = pytest.mark.vm

pod = guardian.pod


def test_the_guardian_survives_an_oom_kill_of_its_whole_cgroup(
    pod: Path, cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    guardian.test_the_guardian_is_exempt_from_the_oom_killer_and_the_agent_is_not(pod, tmp_path)
    guardian.test_the_guardian_survives_an_oom_kill_of_its_whole_cgroup(
        pod, cgroup_root, cgroup_layout, tmp_path
    )
