# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a host with a shaped link: class tree, ceiling, restore."""

from collections.abc import Iterator
import json
import os
from pathlib import Path
import signal
from typing import Any

import pytest

from controller.cli.main import main
from controller.core.decision import SlowBecause
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.netns import entered, process_in
from tests.kernel.wire import Flow, Host, dump
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

# A slow link, which a busy machine fills, too. The guarantee of best-effort work exceeds what a
# busy service leaves, so the loop has to act.
LINK_MBIT = 20
TIERS = ("system", "latency-sensitive", "best-effort")
NETWORK = f"""
network:
  devices:
    - {{name: up0, egress: {LINK_MBIT}mbit, ingress: {LINK_MBIT}mbit}}
    - {{name: nowhere0}}
  tiers:
    system: {{guaranteed: 5%}}
    latency-sensitive: {{guaranteed: 10%}}
    best-effort: {{guaranteed: 60%}}
"""


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as made, entered(made.name):
        yield made


def ceilings(agent: AgentRun) -> list[float]:
    """Return the ceilings of egress and ingress in Mbit/s; empty without the knob."""
    (value,) = [k["applied"] for k in agent.status()["knobs"] if k["knob"] == "tc.ceiling"] or [""]
    return [int(word) / 125_000 for word in value.split()]


def is_unlimited(agent: AgentRun) -> bool:
    return ceilings(agent) == [LINK_MBIT, LINK_MBIT]


def is_squeezed(agent: AgentRun) -> bool:
    found = ceilings(agent)
    return bool(found) and min(found) < LINK_MBIT / 3


def is_shaped(host: Host) -> bool:
    return "5357:103" in "\n".join(dump(host))


def test_the_loop_moves_the_ceiling_and_everything_is_restored(
    host: Host,
    cgroup_root: Path,
    cgroup_layout: CgroupLayout,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    site.write(NETWORK)
    before = dump(host)
    with (
        process_in(host.pods["web"], site.service),
        process_in(host.pods["batch"], site.batch[0]),
        AgentRun(site) as agent,
    ):
        agent.ready()
        eventually("filters of both pods", lambda: "\n".join(dump(host)).count("_mark") == 2)
        eventually("no limit yet", lambda: is_unlimited(agent))
        assert list(agent.status()["link_problems"]) == ["nowhere0"]
        with Flow(host, host.pods["batch"], streams=4), Flow(host, host.pods["web"]):
            eventually("a squeeze", lambda: is_squeezed(agent))
            eventually("a verdict", lambda: agent.because("web") == SlowBecause.BEST_EFFORT)
        assert ("up0", "egress") in agent.series("sweetpoint_link_ceiling_bytes_per_second")
        counted = agent.series("sweetpoint_link_bytes_total")
        assert min(counted["up0", "egress", tier] for tier in TIERS) > 0
        # A file is written every ten seconds.
        first = eventually("a record of it", lambda: squeezes(site, capsys))[0]
        assert first["service"] == "web"
        assert [(knob["knob"], knob["target"]) for knob in first["knobs"]] == [
            ("tc.ceiling", "up0")
        ]
        site.write(NETWORK, mode="observe")  # so the next agent leaves everything as it was
        os.kill(agent.pids()[1], signal.SIGKILL)
        eventually("everything restored", lambda: dump(host) == before)
        agent.ready()
        site.write(NETWORK)
        agent.process.send_signal(signal.SIGHUP)
        eventually("shaped again", lambda: is_shaped(host))
        assert agent.stop() == 0
    assert dump(host) == before


def squeezes(site: Site, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the squeezes by the network that explain finds: none without a history."""
    capsys.readouterr()
    code = main(["explain", "batch:one", "--json", "--data-dir", str(site.home / "data")])
    out = capsys.readouterr().out
    found = json.loads(out)["incidents"] if code == 0 else []
    return [each for each in found if each["kind"] == "squeeze" and each["channel"] == "network"]


@pytest.mark.thorough
def test_a_service_that_fills_its_link_alone(
    host: Host, cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    site.write(NETWORK)
    with (
        process_in(host.pods["web"], site.service),
        process_in(host.pods["batch"], site.batch[0]),
        AgentRun(site) as agent,
    ):
        agent.ready()
        eventually("filters of both pods", lambda: "\n".join(dump(host)).count("_mark") == 2)

        def is_left_alone() -> None:
            assert agent.because("web") in (SlowBecause.LINK, None)
            assert is_unlimited(agent)

        def is_told() -> bool:
            is_left_alone()
            return any(
                each["text"].startswith("slow (link)") for each in agent.status()["decisions"]
            )

        with Flow(host, host.pods["web"], streams=4):
            eventually("a verdict", is_told)
            agent.watch(10, is_left_alone)
        assert agent.stop() == 0


@pytest.mark.thorough
def test_observe_mode_changes_no_link(
    host: Host, cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    site.write(NETWORK, mode="observe")
    before = dump(host)
    run = AgentRun(site)
    try:
        with run as agent:
            agent.ready()
            eventually("the ceilings of observe mode", lambda: is_unlimited(agent))
            agent.watch(5)
            assert not agent.status()["links"]
            assert dump(host) == before
            site.write(NETWORK)
            agent.process.send_signal(signal.SIGHUP)
            eventually("enforcing", lambda: is_shaped(host))
            site.write(NETWORK, mode="observe")
            agent.process.send_signal(signal.SIGHUP)
            eventually("observing again", lambda: dump(host) == before)
    finally:
        print(run.output)
