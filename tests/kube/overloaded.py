# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A node whose service suffers, and what there is to see of it in the cluster."""

import json
from pathlib import Path
from typing import Any

from controller.kube.overload_taint import TAINT_KEY
from tests.kernel.agent import AgentRun
from tests.kernel.loads import Load
from tests.kernel.overload import CPU, PROFILE, outweigh
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.kube.installed import Installed
from tests.kube.kubelet import Kubelet, Running
from tests.kube.site import NodeSite

__all__ = ("OverloadedNode", "hurting")


class OverloadedNode:
    """The agent's site on a node with the service ``web``; its identity is that of the chart."""

    def __init__(self, cluster: Cluster, namespace: str, kubelet: Kubelet, home: Path) -> None:
        self.cluster, self.namespace, self.kubelet = cluster, namespace, kubelet
        installed = Installed(cluster, {"config": {"kubernetes": {"eviction": {"enabled": True}}}})
        self.site = NodeSite(cluster, kubelet, home, installed.agent(kubelet.node))
        (home / "tight.yaml").write_text(PROFILE)
        self.write()
        outweigh(kubelet.kubepods.base)
        self.web = self.start("web", "Burstable", {"sweetpoint.dev/profile": "tight"})

    def write(self, mode: str = "enforce", eviction: str = "") -> None:
        """Write the agent's configuration, with more about *eviction*."""
        self.site.write(
            "profiles: [tight.yaml]\n",
            mode=mode,
            kubernetes=f"  eviction: {{enabled: true{eviction}}}\n",
        )

    def start(
        self, name: str, qos: str, labels: dict[str, str] | None = None, namespace: str = ""
    ) -> Running:
        """Start a pod and return it."""
        namespace = namespace or self.namespace
        labels = {"app": name, **(labels or {})}
        node = self.kubelet.node
        return self.kubelet.start(
            self.cluster.make_pod(namespace, name, node=node, qos=qos, labels=labels)
        )

    def hog(self, name: str = "hog") -> Running:
        """Start a pod that is best-effort of its own will, in a cgroup that may do harm."""
        hog = self.start(name, "Burstable", {"sweetpoint.dev/qos": "best-effort"})
        outweigh(hog.cgroup)
        return hog

    def mouse(self) -> Running:
        """Start a best-effort pod that does next to no harm."""
        return self.start("mouse", "BestEffort")

    def pain(self, *culprits: Running) -> tuple[Load, ...]:
        """Return the work of the service and that of the *culprits*, on the same CPU."""
        work = (Load(each.container, "hog", CPU) for each in culprits)
        return (Load(self.web.container, "bursts", CPU), *work)

    @property
    def ended(self) -> list[str]:
        """The uids of the pods that went, in order."""
        return self.kubelet.ended

    def marks(self) -> list[Any]:
        """Return our taints of the node."""
        node = self.cluster.admin.get(f"/api/v1/nodes/{self.kubelet.node}")
        return [each for each in node["spec"].get("taints", []) if each["key"] == TAINT_KEY]

    def events(self, pod: Running) -> dict[str, Json]:
        """Return the Events about *pod* by reason, as kubectl shows them."""
        selector = f"--field-selector=involvedObject.uid={pod.uid}"
        namespace = pod.pod["metadata"]["namespace"]
        text = self.cluster.kubectl("get", "events", "-n", namespace, selector, "-o", "json")
        return {str(event["reason"]): event for event in json.loads(text)["items"]}


def hurting(agent: AgentRun) -> bool:
    """Whether the service waits at least twice as long as it may, as the agent sees it."""
    loops = agent.status()["plan"]["loops"]
    return any((loop["filtered_deviation"] or 0.0) >= 1.0 for loop in loops)
