# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Services that do not run yet, or no more: the agent protects the others and looks for them."""

import os
from pathlib import Path
import signal

import pytest

from controller.cli.main import main
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


def names(agent: AgentRun) -> set[str]:
    return {each["name"] for each in agent.status()["workloads"]}


def test_a_service_that_starts_after_the_agent_is_protected(site: Site) -> None:
    site.service.rmdir()
    with AgentRun(site) as agent:
        agent.ready()
        (missing,) = agent.status()["missing"]
        assert f"{site.path(site.service)} does not exist" in missing
        assert "sweetpoint_missing_cgroups 1.0" in agent.metrics()
        assert names(agent) == {"batch:one", "batch:two"}
        site.service.mkdir()
        agent.enforcing()
        eventually("no missing cgroup", lambda: not agent.status()["missing"])
        assert agent.stop() == 0
    assert agent.output.count("does not exist") == 1


@pytest.mark.thorough
def test_without_any_workload_the_agent_waits_for_one(site: Site) -> None:
    for path in (site.service, *site.batch):
        path.rmdir()
    with AgentRun(site) as agent:
        agent.ready()
        eventually("ticks", lambda: agent.status()["tick"]["count"] > 5)
        assert names(agent) == set()
        assert agent.status()["tick"]["failed"] == 0
        for path in (site.service, *site.batch):
            path.mkdir()
        agent.enforcing()
        assert agent.stop() == 0


def test_the_others_stay_protected_when_the_agent_dies_while_a_service_is_stopped(
    site: Site,
) -> None:
    other = site.root / "db"
    other.mkdir()
    site.write(f"  - {{name: db, cgroup: {site.path(other)}, class: latency-sensitive}}\n")
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        site.service.rmdir()
        eventually("the removal", lambda: "web" not in names(agent))
        killed = agent.pids()[1]
        os.kill(killed, signal.SIGKILL)
        eventually("another agent", lambda: agent.pids()[1] != killed)
        agent.ready().enforcing()
        assert names(agent) == {"db", "batch:one", "batch:two"}
        assert agent.stop() == 0


@pytest.mark.thorough
def test_learning_needs_the_service_and_no_other(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    learn = ["learn", "--config", str(site.config), "--for", "1s", "web"]
    for path in site.batch:
        path.rmdir()
    assert main(learn) == 1
    assert "web: no profile: " in capsys.readouterr().err
    site.service.rmdir()
    assert main(learn) == 2
    assert f"{site.path(site.service)} does not exist" in capsys.readouterr().err
