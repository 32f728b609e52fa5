# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents staged beside a real agent: ``sweetpoint explain`` names the true cause of each.

Others are in ``test_agent_history`` (a foreign write, a kill), ``test_agent_links`` (bandwidth),
``test_first_steps`` (sched-idle, a change of the mode), and, simulated, in ``tests/sim``.
"""

import json
from pathlib import Path
import signal
from typing import Any

import pytest

from controller.cli.main import main
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.kernel.without import without
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

PROFILE = """\
name: nginx
indicators:
  runq_p99:
    {sweet_point: 100us, resolution: 10us, window: 1s, filter: 0s, gains: {kp: 1, ti: 200ms}}
channels: [cpu]
sched_idle: false
knobs: {cpu.quota: {floor: 250mcpu, squeeze: 10/s}}
"""


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    outweigh(site.root, 100)  # what else runs on this machine must not count
    site.write("profiles: [tight.yaml]\n")
    (site.home / "tight.yaml").write_text(PROFILE)
    return site


class Explain:
    """The command, on the history of the agent of *site*."""

    def __init__(self, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
        self._data_dir, self._capsys = site.home / "data", capsys

    def text(self, name: str, *options: str) -> str:
        """Return what it prints; empty as long as there is no history."""
        self._capsys.readouterr()
        code = main(["explain", name, "--since", "1h", "--data-dir", str(self._data_dir), *options])
        out, _ = self._capsys.readouterr()
        return out if code == 0 else ""

    def incidents(self, name: str, kind: str) -> list[dict[str, Any]]:
        found = self.text(name, "--json")
        each: list[dict[str, Any]] = json.loads(found)["incidents"] if found else []
        return [incident for incident in each if incident["kind"] == kind]


@pytest.fixture
def explain(site: Site, capsys: pytest.CaptureFixture[str]) -> Explain:
    return Explain(site, capsys)


def test_a_service_that_its_own_quota_throttles(site: Site, explain: Explain) -> None:
    limit = ("cpu.max", "3000 100000")
    if site.layout.version == "v1":
        limit = ("cpu.cfs_quota_us", "3000")
    (site.service / limit[0]).write_text(limit[1])
    # Throttled time is no wait. Two threads wait for each other for a millisecond, on any machine.
    wanted = [*[Load(site.service, "bursts", CPU)] * 2, Load(site.batch[0], "idle")]
    with loads(wanted, seconds=120) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        eventually("a record of it", lambda: "throttled by its own" in explain.text("web"))
        assert agent.stop() == 0
    (suffering, *_) = explain.incidents("web", "suffering")
    assert suffering["channel"] == "cpu"
    assert set(suffering["states_ns"]) <= {"self", "free", "not-be"}
    assert suffering["states_ns"]["self"] > 0
    assert "It was not touched" in explain.text("batch:one")


def test_a_probe_that_is_missing(site: Site, explain: Explain, cgroup_layout: CgroupLayout) -> None:
    hide = without("BTF", site.home, cgroup_layout)
    wanted = [Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)]
    with loads(wanted, seconds=60) as running, AgentRun(site, without=hide) as agent:
        eventually("the pages", lambda: agent.get("/healthz"))
        running.start()
        eventually("a record of it", lambda: "no data on cpu" in explain.text("web"))
        assert agent.stop(signal.SIGTERM) == 0
    assert "It was not touched" in explain.text("batch:one")
