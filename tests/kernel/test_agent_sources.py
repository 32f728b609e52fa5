# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent with sources other than BPF probes: pushed figures, traffic by network namespace."""

import os
from pathlib import Path
import signal
import socket
import time

import pytest

from tests.kernel.agent import AgentRun, Site
from tests.kernel.netns import namespaces
from tests.kernel.talkers import Talker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]


def push(path: Path, text: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), str(path))


def test_a_pushed_figure_reaches_the_metrics(site: Site) -> None:
    path = site.home / "push" / "socket"
    section = "service_level:\n  socket: {}\n  services:\n    web: {{push: {{}}, unit: {}}}\n"
    site.write(section.format(path, "ms"), mode="observe")
    with AgentRun(site) as run:
        run.ready()
        pushed_ns = time.monotonic_ns()
        key = ("web", "push")
        seconds = "sweetpoint_service_level_seconds"

        def is_shown(text: str, wanted: float) -> bool:
            push(path, text)  # again, because a figure of 17 seconds ago is not used any more
            return run.series(seconds).get(key) == wanted

        eventually("the figure", lambda: is_shown("web 12.5", 0.0125))
        age_ns = run.status()["service_level"][0]["age_ns"]
        assert 0 <= age_ns <= time.monotonic_ns() - pushed_ns
        push(path, "shop 1")
        refused = "sweetpoint_service_level_refused_pushes_total"
        eventually("a refusal", lambda: run.series(refused) == {("unknown",): 1})
        # A reload changes the unit of the figure, so the old figure is dropped.
        site.write(section.format(path, "s"), mode="observe")
        os.kill(run.pids()[1], signal.SIGHUP)
        eventually("nothing", lambda: not run.series(seconds))
        eventually("the figure", lambda: is_shown("web 2", 2))
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

        def of_loop(name: str) -> dict[tuple[str, ...], float]:
            found = run.series(f"sweetpoint_{name}")
            return {labels: value for labels, value in found.items() if "service" in labels}

        # Before the first figure the value is unknown, which is not 0.
        assert not of_loop("indicator_value")

        def is_judged() -> bool:
            push(path, "web 80")  # again, because a figure of 17 seconds ago is not used any more
            names = ("indicator_value", "indicator_sweet_point", "loop_deviation")
            # 80 ms is four times the sweet point: a deviation of 2 (twice the tolerance).
            return [{*of_loop(name).values()} for name in names] == [{0.08}, {0.02}, {2}]

        eventually("the value", is_judged)

        def is_idle() -> bool:
            push(path, "web nan")
            return any("idle" in each for each in of_loop("indicator_status"))

        eventually("idle", is_idle)
        assert not of_loop("indicator_value")
        assert run.stop() == 0


def test_without_a_cgroup2_directory_traffic_comes_by_namespace(site: Site) -> None:
    if site.layout.version == "v2":
        pytest.skip("every workload has a cgroup2 directory here")
    site.write(mode="observe")
    with (
        namespaces(1) as (namespace,),
        Talker(site.service, "echo", netns=namespace),
        AgentRun(site) as run,
    ):
        run.ready()
        sources = "sweetpoint_workload_network_source"
        eventually("the namespace", lambda: run.series(sources) == {("netns", "web"): 1.0})
        sent = run.series("sweetpoint_workload_network_bytes_total")
        assert sent == {("transmit", "web"): 0, ("receive", "web"): 0}
        assert run.stop() == 0
