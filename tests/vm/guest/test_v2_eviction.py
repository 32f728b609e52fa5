# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""cgroup.freeze and cgroup.kill, which exist on cgroup v2 only.

The tests are those of ``tests/kernel/test_host_eviction.py``, repeated in the guest.
"""

import os
from pathlib import Path

import pytest

from actuators.executor import Executor
from controller.host.facts import CgroupLayout
from tests.kernel import test_host_eviction as standalone

pytestmark = pytest.mark.vm

hog, executor = standalone.hog, standalone.executor


def test_who_died_while_somebody_was_frozen_thaws_him_at_the_next_start(
    cgroup_layout: CgroupLayout, hog: standalone.Hog, executor: Executor, tmp_path: Path
) -> None:
    standalone.test_who_died_while_somebody_was_frozen_thaws_him_at_the_next_start(
        cgroup_layout, hog, executor, tmp_path
    )
    assert (hog.pod / "cgroup.freeze").read_text() == "0\n"


def test_kill_ends_all_in_the_cgroup_and_nobody_beside_it(
    cgroup_layout: CgroupLayout,
    hog: standalone.Hog,
    executor: Executor,
    cgroup_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Needed to kill processes one by one, but not for cgroup.kill.
    monkeypatch.delattr(os, "pidfd_open")
    standalone.test_kill_ends_all_in_the_cgroup_and_nobody_beside_it(
        cgroup_layout, hog, executor, cgroup_root, tmp_path
    )
