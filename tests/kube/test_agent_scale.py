# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's cost with a thousand pods on a node and twenty changes a second for a minute."""

from collections.abc import Iterator
from pathlib import Path
import time

import pytest

from tests.kernel.agent import AgentRun
from tests.kernel.footprint import footprint
from tests.kernel.loads import Load, loads
from tests.kube.cluster import Cluster
from tests.kube.crowd import Crowd, Expected
from tests.kube.installed import Installed
from tests.kube.kubelet import Kubelet
from tests.kube.kubepods import Kubepods
from tests.kube.site import NodeSite
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel, pytest.mark.soak]

PODS, WORKING = 1000, 40
PER_SECOND, SECONDS, WARM_UP_S = 20, 60, 10
SCRAPE_S = 15
MOST_CPUS, MOST_BYTES = 0.05, 120 * 2**20
# All functions that use the API server are enabled.
SECTION = {"eviction": {"enabled": True}, "capacity": {"enabled": True}}


@pytest.fixture
def kubelet(cluster: Cluster, kubepods: Kubepods) -> Kubelet:
    """A kubelet that does not complete deletions; the crowd does."""
    return Kubelet(cluster, cluster.new_name("node"), kubepods)


@pytest.fixture
def crowd(cluster: Cluster, kubelet: Kubelet, namespace: str) -> Iterator[Crowd]:
    crowd = Crowd(cluster, kubelet, namespace)
    try:
        crowd.fill(PODS)
        yield crowd
    finally:
        crowd.close()


def known(agent: AgentRun) -> dict[str, Expected]:
    """The classes and profiles of the workloads in /statusz, by namespace and name."""
    return {
        # A container of a pod counts as the pod.
        "/".join(w["name"].split("/")[:2]): Expected(w["qos"], w["profile"])
        for w in agent.status()["workloads"]
    }


def test_a_thousand_pods_and_twenty_changes_a_second(
    cluster: Cluster, kubelet: Kubelet, crowd: Crowd, tmp_path: Path
) -> None:
    installed = Installed(cluster, {"mode": "enforce", "config": {"kubernetes": SECTION}})
    site = NodeSite(cluster, kubelet, tmp_path, installed.agent(kubelet.node))
    site.write(kubernetes="  eviction: {enabled: true}\n  capacity: {enabled: true}\n")
    wanted = [Load(pod.container, "idle") for pod in crowd.newest[-WORKING:]]
    with loads(wanted) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        eventually("all pods", lambda: known(agent) == crowd.expected)
        for _ in crowd.changes(PER_SECOND, WARM_UP_S):  # warm-up: allocations that are made once
            pass
        eventually("the changes", lambda: known(agent) == crowd.expected)
        time.sleep(2)
        began_s, before = time.monotonic(), footprint(agent)
        most_bytes = before.pss_bytes
        for number in crowd.changes(PER_SECOND, SECONDS):
            if number % (PER_SECOND * SCRAPE_S) == 0:  # as Prometheus does
                assert agent.get("/metrics")
                most_bytes = max(most_bytes, footprint(agent).pss_bytes)
        after, took_s = footprint(agent), time.monotonic() - began_s
        eventually("the last changes", lambda: known(agent) == crowd.expected)
        state, end = agent.status(), footprint(agent)
        assert agent.stop() == 0
    cpus, most_bytes = (after.cpu_s - before.cpu_s) / took_s, max(most_bytes, end.pss_bytes)
    tick = state["tick"]
    print(
        f"\n{PER_SECOND * SECONDS} changes in {took_s:.1f} s among {len(crowd.expected)} pods: "
        f"{cpus:.2%} of a CPU, {most_bytes / 2**20:.1f} MiB "
        f"({(end.pss_bytes - before.pss_bytes) / 2**20:+.1f}); tick median "
        f"{tick['duration_median_ns'] / 1e6:.2f} ms, p99 {tick['duration_p99_ns'] / 1e6:.2f} ms, "
        f"{tick['overruns']} overruns; fds {before.fds} -> {end.fds}"
    )
    assert took_s < 1.05 * SECONDS, "this machine does not make that many changes"
    assert cpus <= MOST_CPUS
    assert most_bytes <= MOST_BYTES
    assert tick["failed"] == 0
    assert state["agent"]["shed"] == 0
    assert state["cluster"]["failed_requests"] == {}
    # A request may be in progress.
    assert abs(end.fds - before.fds) <= 2
    assert end.threads <= before.threads + 1
