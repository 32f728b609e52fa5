# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The history of a real agent: a squeeze, a foreign write, a kill and a restart, explained."""

import json
from typing import Any

import pytest

from controller.cli.main import main
from controller.core.model import Knob
from tests.kernel.agent import AgentRun, Site
from tests.kernel.explaining import Explain, squeezed
from tests.kernel.knobs import executor, set_quota, target_of
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.apart, pytest.mark.usefixtures("alone_on_cpu")]

FOREIGN = "70000 100000"


@pytest.fixture
def wanted(site: Site) -> list[Load]:
    """A service and a hog on its CPU, before which what else runs on this machine does not count.

    The configuration squeezes the hog.
    """
    outweigh(site.root, 200)
    site.tighten()
    return [Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)]


def quota_of(site: Site) -> str:
    """Return quota and period of the hog as the kernel has them."""
    agent = executor(site.layout, site.home / "no-agent")
    (reading,) = agent.read([target_of(site.layout, site.batch[0])], {Knob.CPU_QUOTA})
    return reading.value


@pytest.fixture
def explain(site: Site, capsys: pytest.CaptureFixture[str]) -> Explain:
    return Explain(site, capsys)


def test_a_squeeze_and_a_foreign_write(
    site: Site, wanted: list[Load], explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    with loads(wanted) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        # A squeeze that ends within a second may have no record.
        eventually("a record of a squeeze", lambda: explain.incidents("batch:one", "squeeze"))
        quota_us, period_us = map(int, FOREIGN.split())

        def is_discovered() -> bool:
            """Write as another program does, again where the agent has not seen that."""
            is_gone = FOREIGN not in quota_of(site)
            agent.watch(1)
            if agent.series("sweetpoint_knob_overwrites_total").get(("cpu.quota",)):
                return True
            if is_gone:  # it was written when the agent wrote, or had let go of its squeeze
                squeezed(agent)
                set_quota(site.batch[0], quota_us, period_us)
            return False

        eventually("the discovery of a foreign write", is_discovered)
        eventually("a record of it", lambda: explain.incidents("batch:one", "note"))
        status = agent.status()["history"]
        assert (status["problem"], status["lost_moments"]) == ("", 0)
        assert agent.stop() == 0
    assert FOREIGN in quota_of(site)
    check_squeezes(explain)
    (note,) = explain.incidents("batch:one", "note")
    assert note["event"] == "foreign" and FOREIGN in note["text"]
    assert not explain.incidents("batch:two", "squeeze")
    assert explain.incidents("web", "suffering")
    # The same snapshots, judged by themselves.
    assert main(["replay", str(site.home / "data")]) == 0
    assert "cpu: mean demand" in capsys.readouterr().out
    # What the service used is in them too, and its limits are those of its cgroup now.
    set_quota(site.service, 150_000, 100_000)
    assert main(["advise", "--json", "--data-dir", str(site.home / "data")]) == 0
    (size,) = json.loads(capsys.readouterr().out)["sizes"]
    assert (size["service"], size["advised"]) == ("web", None)
    assert size["observed_ns"] > 0
    assert size["limits_now"] == {"cpus": 1.5, "memory_bytes": None}
    # Without a limit of its own, that of a container in it.
    set_quota(site.service, None, 100_000)
    inner = site.service / "inner"
    inner.mkdir()
    if site.layout.version == "v2":
        (site.service / "cgroup.subtree_control").write_text("+cpu")
    set_quota(inner, 50_000, 100_000)
    assert main(["advise", "--json", "--data-dir", str(site.home / "data")]) == 0
    (size,) = json.loads(capsys.readouterr().out)["sizes"]
    assert size["limits_now"] == {"cpus": None, "memory_bytes": None}
    inside = size["container_limits_now"]
    assert (inside["cpus"], inside["cpus_of"]) == (0.5, "inner")


@pytest.mark.thorough
def test_a_kill(site: Site, wanted: list[Load], explain: Explain) -> None:
    with loads(wanted) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        eventually("a record of a squeeze", lambda: explain.incidents("batch:one", "squeeze"))
        agent.kill_agent()
        agent.ready()
        squeezed(agent)
        eventually(
            "a record of another one", lambda: len(explain.incidents("batch:one", "squeeze")) > 1
        )
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
    assert all(each["ended_by"] for each in squeezes)
    return squeezes
