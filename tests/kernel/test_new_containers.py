# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent makes a tick for a container that is about to run, in enforce mode only."""

import signal
import socket

import pytest

from tests.kernel.agent import AgentRun, Site
from tests.support.nri import Runtime, start
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.kernel


def test_a_container_waits_for_a_tick_only_while_the_agent_enforces(site: Site) -> None:
    place = site.home / "nri.sock"
    nri = f"nri: {{enabled: auto, socket: {place}, answer_within: 1s}}\n"
    site.write(nri)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        listener.settimeout(DEADLINE_S)
        with AgentRun(site) as agent, Runtime(listener) as runtime:
            runtime.accept()
            agent.ready()
            runtime.ask(1, "StartContainer", start("u-1"))
            assert runtime.answer() == (1, b"")
            told = eventually("the page", lambda: answers(agent))
            assert told["problem"] == ""
            site.write(nri, mode="observe")
            agent.process.send_signal(signal.SIGHUP)
            assert runtime.socket.recv(1) == b"", "the plugin is still there"
            eventually("the page", lambda: agent.status()["nri"] is None)
            assert agent.stop() == 0


def answers(agent: AgentRun) -> dict[str, object] | None:
    """Return the state of the plugin once it has answered."""
    state: dict[str, object] = agent.status()["nri"]
    return state if state["in_time"] or state["late"] else None
