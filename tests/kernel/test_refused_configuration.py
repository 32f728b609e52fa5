# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A file that a reload refused, or would refuse: after a crash the agent goes on without it."""

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


def test_protection_outlives_a_crash_after_a_reload_that_was_refused(site: Site) -> None:
    before = site.knobs()
    good = site.config.read_text()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        site.config.write_text(good + "{[")
        agent.process.send_signal(signal.SIGHUP)
        refused = eventually("the refusal", lambda: agent.status()["config_problem"])
        killed = agent.pids()[1]
        os.kill(killed, signal.SIGKILL)
        eventually("another agent", lambda: agent.pids()[1] != killed)
        agent.ready().enforcing()
        assert agent.status()["config_problem"] == refused
        assert "sweetpoint_config_problem 1.0" in agent.metrics()
        site.config.write_text(good)
        agent.process.send_signal(signal.SIGHUP)
        eventually("the acceptance", lambda: not agent.status()["config_problem"])
        assert agent.stop() == 0
    assert "The agent before this one died" in agent.output
    assert site.knobs() == before


@pytest.mark.thorough
def test_protection_outlives_a_crash_of_the_guardian_and_ends_with_a_stop(site: Site) -> None:
    good = site.config.read_text()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        site.config.write_text(good + "tack: 200ms\n")
        guardian, child = agent.pids()
        os.kill(child, signal.SIGSTOP)  # otherwise it ends in order when the guardian dies
        os.kill(guardian, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        assert agent.wait() == -signal.SIGKILL
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        assert "unknown key" in agent.status()["config_problem"]
        assert agent.stop() == 0
    with AgentRun(site) as agent:
        assert agent.wait() == 2
    assert "unknown key" in agent.output
