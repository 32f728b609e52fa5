# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a node: the Node's annotation pauses it, with the rights of the chart."""

from collections.abc import Iterator
from pathlib import Path
import signal
import time

import pytest

from tests.kernel.agent import AgentRun
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.kube.installed import Installed
from tests.kube.kubelet import Kubelet
from tests.kube.site import NodeSite, stays
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

KEY = "sweetpoint.dev/pause"


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Installed:
    return Installed(cluster, {})


@pytest.fixture
def site(
    cluster: Cluster, installed: Installed, kubelet: Kubelet, tmp_path: Path
) -> Iterator[NodeSite]:
    yield NodeSite(cluster, kubelet, tmp_path, installed.agent(kubelet.node))


def annotate(site: NodeSite, text: str | None) -> None:
    path = f"/api/v1/nodes/{site.kubelet.node}"
    site.cluster.admin.patch(path, {"metadata": {"annotations": {KEY: text}}})


def ends(agent: AgentRun) -> list[float]:
    """Return the ends of the pauses in force."""
    return [each["until_s"] for each in agent.status()["pauses"]]


def events(site: NodeSite, reason: str) -> list[Json]:
    found = site.cluster.admin.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [
        event
        for event in found
        if event["regarding"]["name"] == site.kubelet.node and event["reason"] == reason
    ]


def test_the_annotation_pauses_and_its_removal_resumes(
    cluster: Cluster, namespace: str, site: NodeSite
) -> None:
    web = cluster.make_pod(namespace, "web", node=site.kubelet.node, qos="Burstable")
    # An owner of a pod cannot pause the node.
    batch = cluster.make_pod(
        namespace, "batch", node=site.kubelet.node, qos="BestEffort", annotations={KEY: "1h"}
    )
    for pod in (web, batch):
        site.kubelet.start(pod)
    before = site.knobs()
    annotate(site, "soon\x1b[31m")
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        eventually("the problem", lambda: agent.status()["pause_problems"].get("node"))
        assert site.protected()

        began_s = time.time()
        annotate(site, "1h")
        eventually("everything restored", lambda: site.knobs() == before)
        (event,) = eventually("an Event", lambda: events(site, "ProtectionPaused"))
        assert "every knob is restored" in event["note"]
        # The page comes at the end of the tick that restores and sends the Event.
        (pause,) = eventually("the pause", lambda: agent.status()["pauses"])
        assert (pause["scope"], pause["source"]) == ("everything", "node")
        end_s = pause["until_s"]
        assert began_s + 3600 <= end_s <= time.time() + 3600

        # A restart: neither begun anew nor forgotten.
        assert agent.stop(signal.SIGTERM) == 0
    with AgentRun(site) as agent:
        agent.ready()
        stays("everything is restored", agent, lambda: site.knobs() == before)
        assert ends(agent) == [end_s]
        annotate(site, None)
        eventually("protection", site.protected)
        eventually("an Event", lambda: events(site, "ProtectionResumed"))
        assert agent.status()["pause_problems"] == {}
        assert agent.stop() == 0
    assert site.knobs() == before
