# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent without its list of pods or its permissions: what it says, and what it leaves alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.agent import AgentRun
from tests.kube.cable import Cable
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.kube.site import NodeSite, stays
from tests.support.http.status_pages import wait_for
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
EVENTS = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


@pytest.fixture
def site(
    cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path, cable: Cable
) -> NodeSite:
    client = cluster.client(namespace, "default")
    return NodeSite(cluster, kubelet, tmp_path, client, url=cable.url)


@pytest.fixture
def batch(site: NodeSite, namespace: str) -> Running:
    pod = site.cluster.make_pod(namespace, "batch", node=site.kubelet.node, qos="BestEffort")
    web = site.cluster.make_pod(namespace, "web", node=site.kubelet.node, qos="Burstable")
    site.kubelet.start(web)
    return site.kubelet.start(pod)


def says(site: NodeSite, status: int, *texts: str) -> Callable[[], bool]:
    """Return a function that tells whether /readyz has *status* and each of *texts*."""

    def is_so() -> bool:
        found, text = wait_for(site.port, "/readyz")
        return found == status and all(each in text for each in texts)

    return is_so


def bindings(site: NodeSite, namespace: str) -> list[str]:
    """Return the names of the bindings of the agent's service account."""
    found: list[Json] = site.cluster.admin.get(BINDINGS)["items"]
    return [
        each["metadata"]["name"]
        for each in found
        if any(subject.get("namespace") == namespace for subject in each.get("subjects", ()))
    ]


def events(site: NodeSite) -> list[Json]:
    """Return the Events about sources of this agent's node."""
    found = site.cluster.admin.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [
        each
        for each in found
        if each["reason"] == "SourceDegraded" and each["regarding"]["name"] == site.kubelet.node
    ]


def test_an_agent_without_its_role_is_not_ready_until_it_has_it(
    site: NodeSite, namespace: str, batch: Running
) -> None:
    with AgentRun(site) as agent:
        waits = "not ready: pods: the API server has not sent the list of pods yet ("
        eventually(
            "503", says(site, 503, f"{waits}403 ", "not ready: permissions: the API server forbids")
        )
        assert agent.status()["workloads"] == []
        # A later request may get no answer in time.
        stays("503", agent, says(site, 503, waits))
        assert not site.idle(batch.cgroup)
        site.cluster.grant(namespace, "default", [PODS, NODES, EVENTS])
        eventually("Ready", says(site, 200, "ready\n"))
        agent.enforcing()
        assert agent.stop() == 0


def test_the_name_of_another_node_and_one_of_no_node(
    site: NodeSite, namespace: str, batch: Running
) -> None:
    cluster = site.cluster
    cluster.grant(namespace, "default", [PODS, NODES, EVENTS])
    other = cluster.new_name("other")
    cluster.make_node(other)
    cluster.make_pod(namespace, "elsewhere", node=other, qos="BestEffort")
    config = site.config.read_text()
    for name, text in (
        (other, f"not ready: pods: no pod in the list of node {other} has a cgroup on this host"),
        ("no-such-node", "not ready: pods: there is no Node no-such-node: set kubernetes.node"),
    ):
        site.config.write_text(config.replace(f"node: {site.kubelet.node}", f"node: {name}"))
        with AgentRun(site) as agent:
            eventually(text, says(site, 503, text))
            stays("503", agent, says(site, 503, text))
            assert not site.idle(batch.cgroup)
            assert agent.stop() == 0


def test_a_role_that_is_removed_leaves_the_agent_ready_and_is_told_once(
    site: NodeSite, namespace: str, batch: Running, cable: Cable
) -> None:
    site.cluster.grant(namespace, "default", [PODS])
    (removed,) = bindings(site, namespace)
    site.cluster.grant(namespace, "default", [NODES, EVENTS])
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        eventually("Ready", says(site, 200, "ready\n"))
        known = agent.status()["workloads"]
        site.cluster.admin.delete(f"{BINDINGS}/{removed}")
        cable.cut()  # otherwise the watch, which was allowed, lasts for minutes
        forbidden = "degraded: permissions: the API server forbids pods (403 "
        eventually("degraded", says(site, 200, forbidden))
        (event,) = eventually("an Event", lambda: events(site))
        assert event["type"] == "Warning"
        assert event["note"].startswith("permissions: the API server forbids pods (403 ")
        stays("one Event", agent, lambda: len(events(site)) == 1)
        assert agent.status()["workloads"] == known
        assert site.idle(batch.cgroup)
        site.cluster.grant(namespace, "default", [PODS])
        eventually("Ready again", says(site, 200, "ready\n"))
        assert agent.stop() == 0
    assert agent.output.count("degraded: permissions: ") == 1
    assert agent.output.count("permissions: well again") == 1
