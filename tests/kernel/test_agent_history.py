# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The history of a real agent: a squeeze, a foreign write, a kill and a restart, explained."""

import json
import os
from pathlib import Path
import signal
from typing import Any

import pytest

from controller.cli.main import main
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.overload import outweigh
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

FOREIGN = "80000 100000"


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    outweigh(site.root)  # what else runs on this machine must not count
    site.write("profiles: [tight.yaml]\n")
    (site.home / "tight.yaml").write_text(
        "name: nginx\ndescription: test\nsched_idle: false\n"
        "indicators:\n  runq_p99: {sweet_point: 200us}\n"
    )
    return site


def test_a_squeeze_a_foreign_write_and_a_kill(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = max(os.sched_getaffinity(0))
    wanted = [Load(site.service, "bursts", cpu), Load(site.batch[0], "hog", cpu)]
    with loads(wanted, seconds=120) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        eventually("a squeeze", lambda: _quota(agent) is not None)
        # A file is written every ten seconds.
        eventually("a record of it", lambda: _incidents(site, capsys, "squeeze"))
        eventually("a squeeze", lambda: _quota(agent) is not None)
        _write_foreign(site)
        eventually("a record of it", lambda: _incidents(site, capsys, "note"))
        os.kill(agent.pids()[1], signal.SIGKILL)
        agent.ready()
        eventually("a squeeze", lambda: _quota(agent) is not None)
        status = agent.status()["history"]
        assert (status["problem"], status["lost_moments"]) == ("", 0)
        assert agent.stop() == 0
    squeezes = _incidents(site, capsys, "squeeze")
    assert {(each["channel"], each["service"]) for each in squeezes} == {("cpu", "web")}
    assert squeezes[0]["culprits"][0]["workload"] == "batch:one"
    assert squeezes[0]["use_before_cpus"] > 0.02, "the hog had run for less than a second"
    assert "stopped" in squeezes[-1]["ended_by"]
    (note,) = _incidents(site, capsys, "note")
    assert note["event"] == "foreign" and FOREIGN in note["text"]
    (gap,) = _incidents(site, capsys, "gap")
    assert "without notice" in gap["reason"]
    assert not _incidents(site, capsys, "squeeze", "batch:two")
    assert _incidents(site, capsys, "suffering", "web")
    # The same snapshots, judged by themselves.
    assert main(["replay", str(site.home / "data")]) == 0
    assert "cpu: mean demand" in capsys.readouterr().out


def _write_foreign(site: Site) -> None:
    """Write a quota as another program would."""
    if site.layout.version == "v2":
        (site.batch[0] / "cpu.max").write_text(FOREIGN)
    else:
        quota, period = FOREIGN.split()
        (site.batch[0] / "cpu.cfs_period_us").write_text(period)
        (site.batch[0] / "cpu.cfs_quota_us").write_text(quota)


def _incidents(
    site: Site, capsys: pytest.CaptureFixture[str], kind: str, name: str = "batch:one"
) -> list[dict[str, Any]]:
    capsys.readouterr()
    code = main(["explain", name, "--json", "--since", "1h", "--data-dir", f"{site.home}/data"])
    out, _ = capsys.readouterr()
    if code != 0:
        return []  # no file yet
    return [each for each in json.loads(out)["incidents"] if each["kind"] == kind]


def _quota(agent: AgentRun) -> str | None:
    for knob in agent.status()["knobs"]:
        if knob["knob"] == "cpu.quota" and not knob["applied"].startswith(("max", FOREIGN)):
            return str(knob["applied"])
    return None
