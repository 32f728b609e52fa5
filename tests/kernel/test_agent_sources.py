# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent with sources other than BPF probes: pushed figures, traffic by network namespace."""

from collections.abc import Iterator
import os
from pathlib import Path
import signal
import socket
import subprocess

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.talkers import Talker
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace with the loopback device only."""
    name = f"swa{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


def series(run: AgentRun, name: str) -> dict[str, float]:
    lines = (run.get("/metrics") or "").splitlines()
    found = [line.rsplit(" ", 1) for line in lines if line.startswith(name + "{")]
    return {labels.removeprefix(name): float(value) for labels, value in found}


def push(path: Path, text: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), str(path))


def test_a_pushed_figure_reaches_the_metrics(site: Site) -> None:
    path = site.home / "push" / "socket"
    section = "service_level:\n  socket: {}\n  services:\n    web: {{push: {{}}, unit: {}}}\n"
    site.write(section.format(path, "ms"), mode="observe")
    with AgentRun(site) as run:
        run.ready()
        push(path, "web 12.5")
        key = '{service="web",source="push"}'
        seconds = "sweetpoint_service_level_seconds"
        eventually("the figure", lambda: series(run, seconds).get(key) == 0.0125)
        assert run.status()["service_level"][0]["age_ns"] < 10 * 10**9
        push(path, "shop 1")
        refused = "sweetpoint_service_level_refused_pushes_total"
        eventually("a refusal", lambda: series(run, refused) == {'{reason="unknown"}': 1})
        # A reload changes the unit of the figure, so the old figure is dropped.
        site.write(section.format(path, "s"), mode="observe")
        os.kill(run.pids()[1], signal.SIGHUP)
        eventually("nothing", lambda: not series(run, seconds))
        push(path, "web 2")
        eventually("the figure", lambda: series(run, seconds).get(key) == 2)
        assert run.stop() == 0
    assert not path.exists()
    assert "which is not a service that pushes" in run.output


def test_a_figure_is_an_indicator_with_a_sweet_point(site: Site) -> None:
    path = site.home / "push" / "socket"
    profile = site.home / "nginx.yaml"  # in place of the shipped one
    profile.write_text("name: nginx\nindicators:\n  service: {sweet_point: 20ms}\n")
    site.write(
        f"profiles: [{profile}]\n"
        f"service_level:\n  socket: {path}\n  services: {{web: {{push: {{}}, unit: ms}}}}\n",
        mode="observe",
    )
    with AgentRun(site) as run:
        run.ready()

        def of_loop(name: str) -> dict[str, float]:
            found = series(run, f"sweetpoint_{name}")
            return {labels: value for labels, value in found.items() if '"service"' in labels}

        # Before the first figure the value is unknown, which is not 0.
        assert not of_loop("indicator_value")
        push(path, "web 80")
        eventually("the value", lambda: set(of_loop("indicator_value").values()) == {0.08})
        assert set(of_loop("indicator_sweet_point").values()) == {0.02}
        # 80 ms is four times the sweet point: a deviation of 2 (twice the tolerance).
        assert set(of_loop("loop_deviation").values()) == {2}
        push(path, "web nan")
        eventually("idle", lambda: any('"idle"' in x for x in of_loop("indicator_status")))
        assert not of_loop("indicator_value")
        assert run.stop() == 0


def test_without_a_cgroup2_directory_traffic_comes_by_namespace(site: Site, namespace: str) -> None:
    if site.layout.version == "v2":
        pytest.skip("every workload has a cgroup2 directory here")
    talker = Talker(site.service, "echo", netns=namespace)
    try:
        site.write(mode="observe")
        with AgentRun(site) as run:
            run.ready()
            sources = "sweetpoint_workload_network_source"
            wanted = {'{source="netns",workload="web"}': 1.0}
            eventually("the namespace", lambda: series(run, sources) == wanted)
            sent = series(run, "sweetpoint_workload_network_bytes_total")
            assert sent == {
                '{direction="transmit",workload="web"}': 0,
                '{direction="receive",workload="web"}': 0,
            }
            assert run.stop() == 0
    finally:
        talker.end()
