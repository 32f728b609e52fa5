# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The state directory of a running agent, when the configuration comes to name another one."""

import os
from pathlib import Path
import signal

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


@pytest.mark.thorough
def test_a_restarted_agent_keeps_the_directory_of_its_guardian(site: Site) -> None:
    before = site.knobs()
    other = site.home / "other"
    with AgentRun(site) as run:
        run.ready().enforcing()
        site.config.write_text(site.config.read_text().replace(f"{site.home}/state", str(other)))
        os.kill(run.process.pid, signal.SIGHUP)
        applied = 'sweetpoint_config_reloads_total{result="applied"} 1.0'
        eventually("a reload", lambda: applied in (run.get("/metrics") or ""))
        _, first = run.pids()
        os.kill(first, signal.SIGKILL)
        eventually("another agent", lambda: run.pids()[1] != first)
        run.ready().enforcing()
        # The guardian restores what this agent holds, and starts no third one.
        os.kill(run.pids()[1], signal.SIGKILL)
        run.process.terminate()
        assert run.wait() == 0
    assert site.knobs() == before
    assert not other.exists()
    assert "reload: state_dir changes only with a restart" in run.output
    assert f"state_dir {other} is not used before" in run.output
