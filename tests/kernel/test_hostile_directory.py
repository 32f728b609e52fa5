# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Commands that load probes, in a directory of another user: none runs a file of it."""

from pathlib import Path
import shutil

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import Site
from tests.support.hostile.directory import COMMAND, HostileDirectory

pytestmark = [pytest.mark.kernel, pytest.mark.apart]


@pytest.fixture
def hostile(tmp_path: Path) -> HostileDirectory:
    return HostileDirectory(tmp_path / "of-another-user")


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


def test_the_agent_with_its_compiler(hostile: HostileDirectory, site: Site) -> None:
    done = hostile.run(COMMAND, "run", "--config", site.config, "--once")
    assert done.returncode == 0, done.stderr
    assert list((site.home / "state" / "programs").iterdir())  # the compiler ran
    assert hostile.ran == []


@pytest.mark.thorough
def test_the_doctor(hostile: HostileDirectory) -> None:
    done = hostile.run(COMMAND, "doctor")
    assert "compiled, loaded and attached" in done.stdout, done.stdout
    assert hostile.ran == []


@pytest.mark.thorough
def test_learning(hostile: HostileDirectory, site: Site) -> None:
    done = hostile.run(COMMAND, "learn", "--config", site.config, "--for", "1s", "web")
    assert "web: no profile: " in done.stderr, done.stderr
    assert hostile.ran == []


@pytest.mark.thorough
@pytest.mark.skipif(
    not (shutil.which("nginx") and shutil.which("stress-ng")), reason="nginx or stress-ng"
)
def test_the_demonstration_with_its_agent_and_its_clients(hostile: HostileDirectory) -> None:
    done = hostile.run(COMMAND, "demo", "--be", "stress-ng", "--rounds", "1", "--seconds", "2")
    assert done.returncode == 0, done.stderr
    assert "stress-ng managed" in done.stdout
    assert hostile.ran == []
