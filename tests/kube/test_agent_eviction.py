# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent with its chart's identity: an overload evicts the culprit, as far as budgets let it."""

from collections.abc import Iterator
import json
import os
from pathlib import Path

import pytest

from tests.kernel.agent import AgentRun, eventually
from tests.kernel.loads import Load, loads
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.kube.installed import Installed
from tests.kube.kubelet import Kubelet, Running
from tests.kube.site import NodeSite

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

MARK = "sweetpoint.dev/overloaded"
# A sweet point that no service can have beside a busy neighbour, however small that one's quota.
TIGHT = """\
name: tight
description: test
sched_idle: false
be_share_min: 5%
channels: [cpu]
indicators:
  runq_p99: {sweet_point: 20us, resolution: 2us}
evict: {enabled: true, after: 2s}
"""


class Shop:
    """A node with a service and a hog on one CPU and a best-effort pod that does no harm."""

    def __init__(self, site: NodeSite, namespace: str) -> None:
        self.site, self.namespace = site, namespace
        self.web = self._start("web", "Burstable", {"sweetpoint.dev/profile": "tight"})
        # Of its own will, and in a cgroup whose weight lets it do harm.
        labels = {"app": "hog", "sweetpoint.dev/qos": "best-effort"}
        self.hog = self._start("hog", "Burstable", labels)
        self.meek = self._start("meek", "BestEffort", {"app": "meek"})

    def _start(self, name: str, qos: str, labels: dict[str, str]) -> Running:
        node = self.site.kubelet.node
        pod = self.site.cluster.make_pod(self.namespace, name, node=node, qos=qos, labels=labels)
        return self.site.kubelet.start(pod)

    def work(self) -> list[Load]:
        cpu = max(os.sched_getaffinity(0))
        return [
            Load(self.web.container, "bursts", cpu),
            *([Load(self.hog.container, "hog", cpu)] * 3),
        ]

    def events(self, pod: Running) -> list[Json]:
        """Return the Events about *pod*, as kubectl shows them."""
        selector = f"--field-selector=involvedObject.uid={pod.uid}"
        text = self.site.cluster.kubectl(
            "get", "events", "-n", self.namespace, selector, "-o", "json"
        )
        return list(json.loads(text)["items"])

    def reasons(self, pod: Running) -> set[str]:
        return {str(event["reason"]) for event in self.events(pod)}

    def taints(self) -> list[str]:
        node = self.site.cluster.admin.get(f"/api/v1/nodes/{self.site.kubelet.node}")
        return [taint["key"] for taint in node["spec"].get("taints", [])]


@pytest.fixture
def shop(cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path) -> Iterator[Shop]:
    installed = Installed(cluster, {"config": {"kubernetes": {"eviction": {"enabled": True}}}})
    site = NodeSite(cluster, kubelet, tmp_path, installed.agent(kubelet.node))
    (tmp_path / "tight.yaml").write_text(TIGHT)
    site.write("profiles: [tight.yaml]\n", kubernetes="  eviction: {enabled: true}\n")
    yield Shop(site, namespace)


def test_the_culprit_goes_and_nobody_else(shop: Shop) -> None:
    meek = Load(shop.meek.container, "idle", min(os.sched_getaffinity(0)))
    with loads([*shop.work(), meek], 120) as running, AgentRun(shop.site) as agent:
        agent.ready()
        running.start()
        ended = shop.site.kubelet.ended
        eventually("the end of the hog", 60, lambda: ended)
        assert ended == [shop.hog.uid]
        assert not shop.hog.cgroup.exists() and shop.meek.cgroup.exists()
        eventually("an Event", 10, lambda: "Evicted" in shop.reasons(shop.hog))
        eventually("the mark", 10, lambda: MARK in shop.taints())
        assert agent.stop() == 0
    (event,) = (e for e in shop.events(shop.hog) if e["reason"] == "Evicted")
    assert f"{shop.namespace}/web" in event["message"]
    assert MARK not in shop.taints()
    assert ended == [shop.hog.uid] and shop.reasons(shop.meek) == set()


@pytest.mark.soak
def test_a_disruption_budget_holds_it_back(shop: Shop) -> None:
    shop.site.cluster.make_budget(shop.namespace, "budget", {"app": "hog"}, allowed=0)
    with loads(shop.work(), 120) as running, AgentRun(shop.site) as agent:
        agent.ready()
        running.start()
        reasons = {"EvictionRefused", "EvictionHeld"}
        eventually("a refusal", 60, lambda: reasons & shop.reasons(shop.hog))
        eventually("the mark to be taken back", 10, lambda: MARK not in shop.taints())
        assert shop.site.kubelet.ended == []
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    assert shop.hog.cgroup.exists()
