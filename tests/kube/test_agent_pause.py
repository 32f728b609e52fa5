# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a node: the Node's annotation pauses it, with the rights of the chart."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
import signal
import time

import pytest

from tests.kernel.agent import AgentRun
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.kube.installed import Installed
from tests.kube.kubelet import Kubelet
from tests.kube.site import NodeSite
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

KEY = "sweetpoint.dev/pause"
# The agent reads the annotation every ten seconds.
SEEN_S = 20


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
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        annotate(site, "soon\x1b[31m")
        eventually("the problem", lambda: agent.status()["pause_problems"].get("node"))
        assert site.protected()

        annotate(site, "1h")
        eventually("everything restored", lambda: site.knobs() == before)
        (event,) = eventually("an Event", lambda: events(site, "ProtectionPaused"))
        assert "every knob is restored" in event["note"]
        (pause,) = agent.status()["pauses"]
        assert (pause["scope"], pause["source"]) == ("everything", "node")
        end_s = pause["until_s"]
        assert 3500 < end_s - time.time() <= 3600

        # A restart: neither begun anew nor forgotten.
        assert agent.stop(signal.SIGTERM) == 0
    with AgentRun(site) as agent:
        agent.ready()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert site.knobs() == before
            time.sleep(0.02)
        assert [each["until_s"] for each in agent.status()["pauses"]] == [end_s]
        annotate(site, None)
        eventually("protection", site.protected)
        eventually("an Event", lambda: events(site, "ProtectionResumed"))

        # An end as a time.
        end = datetime.now(UTC) + timedelta(seconds=18)
        annotate(site, end.isoformat(timespec="seconds").replace("+00:00", "Z"))
        eventually("everything restored", lambda: site.knobs() == before)
        eventually("the end", site.protected)
        assert datetime.now(UTC) > end - timedelta(seconds=1)
        assert agent.status()["pause_problems"] == {}
        assert agent.stop() == 0
    assert site.knobs() == before
