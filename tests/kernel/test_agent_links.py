# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a host with a shaped link: class tree, ceiling, restore."""

from collections.abc import Iterator
import contextlib
import json
import os
from pathlib import Path
import signal
import subprocess
import time
from typing import Any

import pytest

from controller.cli.main import main
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.netns import entered
from tests.kernel.wire import Flow, Host, dump
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

# The guarantee of best-effort work exceeds what a busy service leaves, so the loop has to act.
NETWORK = """
network:
  devices:
    - {name: up0, egress: 200mbit, ingress: 200mbit}
    - {name: nowhere0}
  tiers:
    system: {guaranteed: 5%}
    latency-sensitive: {guaranteed: 10%}
    best-effort: {guaranteed: 60%}
"""


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as made, entered(made.name):
        yield made


@contextlib.contextmanager
def pod(host: Host, name: str, cgroup: Path) -> Iterator[None]:
    """Run a process in *cgroup* and in the network namespace of the pod *name*."""
    join = f"echo $$ > {cgroup}/cgroup.procs; exec sleep 1000"
    inside = ("nsenter", f"--net=/run/netns/{host.pods[name]}")
    process = subprocess.Popen([*inside, "sh", "-c", join])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def ceilings(agent: AgentRun) -> list[int]:
    """Return the ceilings of egress and ingress in Mbit/s; empty without the knob."""
    (value,) = [k["applied"] for k in agent.status()["knobs"] if k["knob"] == "tc.ceiling"] or [""]
    return [int(word) // 125_000 for word in value.split()]


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
        pod(host, "web", site.service),
        pod(host, "batch", site.batch[0]),
        AgentRun(site) as agent,
    ):
        agent.ready()
        eventually("filters of both pods", lambda: "\n".join(dump(host)).count("_mark") == 2)
        assert ceilings(agent) == [200, 200]
        assert list(agent.status()["link_problems"]) == ["nowhere0"]
        flows = [
            Flow(host, host.pods["batch"], seconds=9, streams=4),
            Flow(host, host.pods["web"], seconds=9, mbit=150),
        ]
        try:
            squeezed = eventually("a squeeze", lambda: min(ceilings(agent)) < 60)
        finally:
            for flow in flows:
                flow.end()
        assert squeezed
        metrics = agent.get("/metrics") or ""
        assert (
            'sweetpoint_link_ceiling_bytes_per_second{device="up0",direction="egress"}' in metrics
        )
        for tier in ("system", "latency-sensitive", "best-effort"):
            name = f'sweetpoint_link_bytes_total{{device="up0",direction="egress",tier="{tier}"}}'
            assert name in metrics
        # A file is written every ten seconds.
        found = eventually("a record of it", lambda: squeezes(site, capsys))
        assert (found[0]["channel"], found[0]["service"]) == ("network", "web")
        assert [(knob["knob"], knob["target"]) for knob in found[0]["knobs"]] == [
            ("tc.ceiling", "up0")
        ]
        os.kill(agent.pids()[1], signal.SIGKILL)
        killed = time.monotonic()
        eventually("everything restored", lambda: dump(host) == before)
        print(f"restored after {time.monotonic() - killed:.2f} s")
        eventually("shaped again", lambda: "5357:103" in "\n".join(dump(host)))
        assert agent.stop() == 0
    assert dump(host) == before


def squeezes(site: Site, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the squeezes of the job that explain finds; none as long as there is no history."""
    capsys.readouterr()
    code = main(["explain", "batch:one", "--json", "--data-dir", str(site.home / "data")])
    out = capsys.readouterr().out
    found = json.loads(out)["incidents"] if code == 0 else []
    return [each for each in found if each["kind"] == "squeeze"]


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
            assert ceilings(agent) == [200, 200]
            assert not agent.status()["links"]
            assert dump(host) == before
            site.write(NETWORK)
            agent.process.send_signal(signal.SIGHUP)
            eventually("enforcing", lambda: "5357:103" in "\n".join(dump(host)))
            site.write(NETWORK, mode="observe")
            agent.process.send_signal(signal.SIGHUP)
            eventually("observing again", lambda: dump(host) == before)
    finally:
        print(run.output)
