# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent leaves out ticks while nothing happens, and makes one as soon as a service suffers."""

import time

import pytest

from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel


def looks(agent: AgentRun) -> dict[str, int]:
    return dict(agent.status()["tick"]["looks"])


def test_a_quiet_agent_looks_and_a_service_that_suffers_gets_a_tick(site: Site) -> None:
    site.tighten()
    site.write("tick: 50ms\nprofiles: [tight.yaml]\n")
    outweigh(site.root, 200)
    outweigh(site.root / "batch")
    before = site.knobs()
    wanted = [Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)]
    with loads(wanted) as running, AgentRun(site) as agent:
        agent.ready()

        def left_out() -> int:
            time.sleep(0.5)  # the request itself is a reason for a tick
            return looks(agent).get("quiet", 0)

        eventually("ticks that are left out", lambda: left_out() > 5)
        found = looks(agent)
        assert agent.ticks() < sum(found.values())
        assert found["start"] == 1
        assert "waits" not in found
        running.start()
        eventually("a squeeze", lambda: site.knobs() != before)
        assert agent.series("sweetpoint_looks_total")["waits",] >= 1
        assert looks(agent)["active"] >= 1
        assert agent.stop() == 0


def test_each_due_moment_makes_a_tick_without_looks(site: Site) -> None:
    site.write("tick: 50ms\nlooks: false\n", mode="observe")
    with AgentRun(site) as agent:
        agent.ready()
        agent.watch(10)
        assert set(looks(agent)) == {"off"}
        assert agent.stop() == 0
