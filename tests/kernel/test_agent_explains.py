# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents staged beside a real agent: ``sweetpoint explain`` names the true cause of each.

Others are in ``test_agent_history`` (a foreign write, a kill), ``test_agent_links`` (bandwidth),
``test_first_steps`` (sched-idle, a change of the mode), and, simulated, in ``tests/sim``.
"""

import signal

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.explaining import Explain
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.kernel.without import without
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.apart,
    pytest.mark.thorough,
    pytest.mark.usefixtures("alone_on_cpu"),
]


@pytest.fixture(autouse=True)
def tight(site: Site) -> None:
    """Give the service a sweet point that it misses, before the rest of this machine."""
    outweigh(site.root, 200)
    site.tighten()


@pytest.fixture
def explain(site: Site, capsys: pytest.CaptureFixture[str]) -> Explain:
    return Explain(site, capsys)


def seen_in_ticks(agent: AgentRun, state: str) -> None:
    """Wait for ticks with this state of the channel, longer than a moment of the history."""
    ticks = "sweetpoint_channel_ticks_total"
    eventually(state, lambda: agent.series(ticks).get(("cpu", state), 0) > 10)


def test_a_service_that_its_own_quota_throttles(site: Site, explain: Explain) -> None:
    limit = ("cpu.max", "3000 100000")
    if site.layout.version == "v1":
        limit = ("cpu.cfs_quota_us", "3000")
    (site.service / limit[0]).write_text(limit[1])
    # Throttled time is no wait. Two threads wait for each other for a millisecond, on any machine.
    wanted = [*[Load(site.service, "bursts", CPU)] * 2, Load(site.batch[0], "idle")]
    with loads(wanted) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        seen_in_ticks(agent, "self")
        assert agent.stop() == 0
    assert "held back by its own limit" in explain.text("web")
    # The service may have suffered before for another reason, while it got no CPU at all.
    suffering = explain.incidents("web", "suffering")
    assert {each["channel"] for each in suffering} == {"cpu"}
    assert not any("squeeze" in each["states_ns"] for each in suffering)
    assert any(each["states_ns"].get("self", 0) > 0 for each in suffering)
    assert "It was not touched" in explain.text("batch:one")


def test_a_probe_that_is_missing(site: Site, explain: Explain, cgroup_layout: CgroupLayout) -> None:
    hide = without("BTF", site.home, cgroup_layout)
    wanted = [Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)]
    with loads(wanted) as running, AgentRun(site, without=hide) as agent:
        eventually("the pages", lambda: agent.get("/healthz"))
        running.start()
        seen_in_ticks(agent, "safe")
        assert agent.stop(signal.SIGTERM) == 0
    assert "no data on cpu" in explain.text("web")
    assert "It was not touched" in explain.text("batch:one")
