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
from tests.kernel import test_host_eviction as evictions

pytestmark = pytest.mark.vm

hog, executor = evictions.hog, evictions.executor


def test_a_restart_thaws_what_was_frozen_before_a_crash(
    cgroup_layout: CgroupLayout, hog: evictions.Hog, executor: Executor, tmp_path: Path
) -> None:
    evictions.test_a_restart_thaws_what_was_frozen_before_a_crash(
        cgroup_layout, hog, executor, tmp_path
    )
    assert (hog.pod / "cgroup.freeze").read_text() == "0\n"


def test_kill_ends_all_processes_in_the_cgroup_and_no_others(
    cgroup_layout: CgroupLayout,
    hog: evictions.Hog,
    executor: Executor,
    cgroup_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Needed to kill processes one by one, but not for cgroup.kill.
    monkeypatch.delattr(os, "pidfd_open")
    evictions.test_kill_ends_all_processes_in_the_cgroup_and_no_others(
        cgroup_layout, hog, executor, cgroup_root, tmp_path
    )
