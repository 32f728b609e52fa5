# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent while its API server is away, silent, or drops every connection."""

from pathlib import Path
import time

import pytest

from tests.kernel.agent import AgentRun, eventually
from tests.kube.cable import Cable
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.kube.site import NodeSite

pytestmark = [pytest.mark.kube, pytest.mark.kernel]


@pytest.fixture
def site(
    cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path, cable: Cable
) -> NodeSite:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    cluster.grant(namespace, "default", rules)
    client = cluster.client(namespace, "default")
    return NodeSite(cluster, kubelet, tmp_path, client, url=cable.url)


def start(site: NodeSite, namespace: str, name: str, qos: str) -> Running:
    pod = site.cluster.make_pod(namespace, name, node=site.kubelet.node, qos=qos)
    return site.kubelet.start(pod)


def knows(site: NodeSite, agent: AgentRun, pod: Running) -> bool:
    return site.workload(agent, pod) is not None


@pytest.mark.soak
def test_a_server_that_is_away_changes_nothing_and_its_return_is_seen(
    site: NodeSite, namespace: str, cable: Cable
) -> None:
    service = start(site, namespace, "web", "Burstable")
    batch = start(site, namespace, "batch", "BestEffort")
    plane = site.cluster.plane
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        known, knobs = agent.status()["workloads"], site.knobs()
        plane.stop_server()
        try:
            before = cable.connections
            time.sleep(60)
            assert site.age_s(agent) > 55
            assert 1 <= cable.connections - before < 60, "a hot loop, or none"
            assert agent.status()["workloads"] == known
            assert site.knobs() == knobs
        finally:
            plane.start_server()
        late = start(site, namespace, "late", "BestEffort")
        eventually("the late one", 60, lambda: knows(site, agent, late))
        assert site.age_s(agent) < 5
        assert all(knows(site, agent, pod) for pod in (service, batch))
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0


def test_cut_watches_are_made_again(site: NodeSite, namespace: str, cable: Cable) -> None:
    start(site, namespace, "web", "Burstable")
    with AgentRun(site) as agent:
        agent.ready()
        for number in range(3):
            before = cable.connections
            cable.cut()
            pod = start(site, namespace, f"batch-{number}", "BestEffort")
            eventually("the pod", 30, lambda pod=pod: knows(site, agent, pod))
            assert 1 <= cable.connections - before < 10
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0


def test_the_tick_does_not_wait_for_a_silent_server(
    site: NodeSite, namespace: str, cable: Cable
) -> None:
    start(site, namespace, "web", "Burstable")
    with AgentRun(site) as agent:
        agent.ready()
        cable.hold()
        cable.cut()  # so that it asks again, and gets no answer
        ticks, began = agent.status()["tick"]["count"], time.monotonic()
        time.sleep(2)
        ticks, took_s = agent.status()["tick"]["count"] - ticks, time.monotonic() - began
        assert ticks > 0.5 * took_s / 0.2
        assert agent.stop() == 0
