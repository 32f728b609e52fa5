# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The fixture for temporary cgroups: everything below it is removed."""

import os
from pathlib import Path
import subprocess

import pytest

from tests.support.cgroups import remove_cgroup
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.kernel


def test_processes_and_nested_cgroups_are_removed(cgroup_root: Path) -> None:
    branch = cgroup_root / "branch"
    nested = branch / "a" / "b"
    nested.mkdir(parents=True)
    with subprocess.Popen(["sleep", "infinity"]) as sleeper:
        (nested / "cgroup.procs").write_text(str(sleeper.pid))
        remove_cgroup(branch)
        assert sleeper.wait(timeout=DEADLINE_S) == -9
    assert not branch.exists()
    assert cgroup_root.exists()


def test_the_name_contains_the_pid_of_the_run(cgroup_root: Path) -> None:
    assert cgroup_root.name.startswith(f"sweetpoint-test-{os.getpid()}-")
