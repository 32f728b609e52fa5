# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A node with an overloaded service, and the effects in the cluster."""

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
    """The agent's site on a node with the service ``web``, with the chart's service account."""

    def __init__(self, cluster: Cluster, namespace: str, kubelet: Kubelet, home: Path) -> None:
        self.cluster, self.namespace, self.kubelet = cluster, namespace, kubelet
        installed = Installed(cluster, {"config": {"kubernetes": {"eviction": {"enabled": True}}}})
        self.site = NodeSite(cluster, kubelet, home, installed.agent(kubelet.node))
        (home / "tight.yaml").write_text(PROFILE)
        self.write()
        outweigh(kubelet.kubepods.base, 200)
        self.web = self.start("web", "Burstable", {"sweetpoint.dev/profile": "tight"})

    def write(self, mode: str = "enforce", eviction: str = "") -> None:
        """Write the agent's configuration; *eviction* is added to that section."""
        self.site.write(
            "profiles: [tight.yaml]\n",
            mode=mode,
            kubernetes=f"  eviction: {{enabled: true{eviction}}}\n"
            f"  profiles: {{allow: {{tight: [{self.namespace}]}}}}\n",
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
        """Start a pod that is best-effort by its label, in a cgroup with a large weight."""
        hog = self.start(name, "Burstable", {"sweetpoint.dev/qos": "best-effort"})
        outweigh(hog.cgroup)
        return hog

    def mouse(self) -> Running:
        """Start a best-effort pod that hardly affects the service."""
        return self.start("mouse", "BestEffort")

    def pain(self, *culprits: Running) -> tuple[Load, ...]:
        """Return the load of the service and of the *culprits*, on the same CPU."""
        work = (Load(each.container, "hog", CPU) for each in culprits)
        return (Load(self.web.container, "bursts", CPU), *work)

    @property
    def ended(self) -> list[str]:
        """The uids of the pods that have ended, in order."""
        return self.kubelet.ended

    def taints(self) -> list[Any]:
        """Return the overload taints of the node."""
        node = self.cluster.admin.get(f"/api/v1/nodes/{self.kubelet.node}")
        return [each for each in node["spec"].get("taints", []) if each["key"] == TAINT_KEY]

    def events(self, pod: Running) -> dict[str, Json]:
        """Return the Events about *pod* by reason."""
        selector = f"fieldSelector=involvedObject.uid%3D{pod.uid}"
        namespace = pod.pod["metadata"]["namespace"]
        found = self.cluster.admin.get(f"/api/v1/namespaces/{namespace}/events?{selector}")
        return {str(event["reason"]): event for event in found["items"]}


def hurting(agent: AgentRun) -> bool:
    """Whether the agent measures at least twice the sweet point for the service."""
    loops = agent.status()["plan"]["loops"]
    return any((loop["filtered_deviation"] or 0.0) >= 1.0 for loop in loops)
