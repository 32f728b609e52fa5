# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The history of a real agent: a squeeze, a foreign write, a kill and a restart, explained."""

from typing import Any

import pytest

from controller.cli.main import main
from tests.kernel.agent import AgentRun, Site
from tests.kernel.explaining import Explain, squeezed
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

FOREIGN = "70000 100000"


@pytest.fixture
def wanted(site: Site) -> list[Load]:
    """A service and a hog on its CPU, before which what else runs on this machine does not count.

    The configuration squeezes the hog.
    """
    outweigh(site.root)
    site.tighten()
    return [Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)]


@pytest.fixture
def explain(site: Site, capsys: pytest.CaptureFixture[str]) -> Explain:
    return Explain(site, capsys)


def test_a_squeeze_and_a_foreign_write(
    site: Site, wanted: list[Load], explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    with loads(wanted) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        squeezed(agent)
        write_foreign(site)
        overwrites = "sweetpoint_knob_overwrites_total"
        eventually("its discovery", lambda: agent.series(overwrites).get(("cpu.quota",)) == 1)
        squeezed(agent, FOREIGN)
        status = agent.status()["history"]
        assert (status["problem"], status["lost_moments"]) == ("", 0)
        assert agent.stop() == 0
    check_squeezes(explain)
    (note,) = explain.incidents("batch:one", "note")
    assert note["event"] == "foreign" and FOREIGN in note["text"]
    assert not explain.incidents("batch:two", "squeeze")
    assert explain.incidents("web", "suffering")
    # The same snapshots, judged by themselves.
    assert main(["replay", str(site.home / "data")]) == 0
    assert "cpu: mean demand" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_kill(site: Site, wanted: list[Load], explain: Explain) -> None:
    with loads(wanted) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        eventually("a record of a squeeze", lambda: explain.incidents("batch:one", "squeeze"))
        agent.kill_agent()
        agent.ready()
        squeezed(agent)
        assert agent.stop() == 0
    assert len(check_squeezes(explain)) > 1
    (gap,) = explain.incidents("batch:one", "gap")
    assert "without notice" in gap["reason"]


def check_squeezes(explain: Explain) -> list[dict[str, Any]]:
    """Check what is said about the squeezes of the hog, and return it."""
    squeezes = explain.incidents("batch:one", "squeeze")
    assert {(each["channel"], each["service"]) for each in squeezes} == {("cpu", "web")}
    assert squeezes[0]["culprits"][0]["workload"] == "batch:one"
    assert squeezes[0]["use_before_cpus"] > 0
    assert "stopped" in squeezes[-1]["ended_by"]
    return squeezes


def write_foreign(site: Site) -> None:
    """Write a quota as another program would."""
    if site.layout.version == "v2":
        (site.batch[0] / "cpu.max").write_text(FOREIGN)
    else:
        quota, period = FOREIGN.split()
        (site.batch[0] / "cpu.cfs_period_us").write_text(period)
        (site.batch[0] / "cpu.cfs_quota_us").write_text(quota)
