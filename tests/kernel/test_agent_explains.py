# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents staged beside a real agent: ``sweetpoint explain`` names the true cause of each.

Others are in ``test_agent_history`` (a foreign write, a kill), ``test_agent_links`` (bandwidth),
``test_first_steps`` (sched-idle, a change of the mode), and, simulated, in ``tests/sim``.
"""

import json
import os
from pathlib import Path
import signal
import time
from typing import Any

import pytest

from controller.cli.main import main
from controller.host.facts import CgroupLayout
from controller.host.pause_file import EVERYTHING, PauseEntry, change_pauses
from tests.kernel.agent import AgentRun, Site, eventually
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.kernel.without import without

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


def is_squeezed(agent: AgentRun) -> bool:
    return any(
        knob["knob"] == "cpu.quota" and not knob["applied"].startswith("max")
        for knob in agent.status()["knobs"]
    )


def stays_squeezed(agent: AgentRun) -> bool:
    """Whether a squeeze lasts three seconds; one of less than a second is not in the history."""
    for _ in range(15):
        if not is_squeezed(agent):
            return False
        time.sleep(0.2)
    return True


def pause(site: Site, *entries: PauseEntry) -> None:
    change_pauses(site.home / "state", entries, None if not entries else (), time.time())


def test_two_culprits_a_pause_and_a_workload_that_was_not_touched(
    site: Site, explain: Explain
) -> None:
    quiet = site.root / "batch" / "quiet"
    quiet.mkdir()
    outweigh(site.root / "batch")
    wanted = [
        Load(site.service, "bursts", CPU),
        Load(site.batch[0], "hog", CPU),
        Load(site.batch[1], "hog", CPU),
        Load(quiet, "idle", min(os.sched_getaffinity(0))),
    ]
    with loads(wanted, seconds=120) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        eventually("a squeeze", 60, lambda: stays_squeezed(agent))
        pause(site, PauseEntry(EVERYTHING, "", time.time() + 600))
        eventually("no squeeze", 10, lambda: not is_squeezed(agent))
        pause(site)
        eventually("a squeeze again", 60, lambda: stays_squeezed(agent))
        assert agent.stop() == 0
    for batch in ("batch:one", "batch:two"):
        squeezes = explain.incidents(batch, "squeeze")
        first, last = squeezes[0], squeezes[-1]
        assert (first["channel"], first["service"]) == ("cpu", "web")
        assert first["be_share"] > 0.8
        shares = {each["workload"]: each["share"] for each in first["culprits"]}
        assert min(shares["batch:one"], shares["batch:two"]) > 0.2 > shares.get("batch:quiet", 0.0)
        assert {each["knob"] for each in first["knobs"]} == {"cpu.quota"}
        assert "released: paused" in [each["ended_by"] for each in squeezes]
        assert "the agent was stopped" in last["ended_by"]
        assert "pause: begins" in explain.text(batch) and "pause: ends" in explain.text(batch)
    assert "It was not touched" in explain.text("batch:quiet")
    assert any(each["states_ns"].get("paused") for each in explain.incidents("web", "suffering"))


def test_a_service_that_its_own_quota_throttles(site: Site, explain: Explain) -> None:
    limit = ("cpu.max", "3000 100000")
    if site.layout.version == "v1":
        limit = ("cpu.cfs_quota_us", "3000")
    (site.service / limit[0]).write_text(limit[1])
    wanted = [Load(site.service, "bursts", CPU), Load(site.batch[0], "idle")]
    with loads(wanted, seconds=120) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        eventually("a record of it", 60, lambda: "throttled by its own" in explain.text("web"))
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
        eventually("the pages", 60, lambda: agent.get("/healthz"))
        running.start()
        eventually("a record of it", 40, lambda: "no data on cpu" in explain.text("web"))
        assert agent.stop(signal.SIGTERM) == 0
    assert "It was not touched" in explain.text("batch:one")
