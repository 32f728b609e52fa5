# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A release of the chart on a real node, installed by Helm, started by its kubelet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helm_python import Config

from tests.kube.agent_image import AGENT_IMAGE
from tests.kube.client import Json
from tests.kube.real_node import RealNode
from tests.support.waiting import WORK_S

__all__ = ("NAMESPACE", "Release")

NAMESPACE = "node-agents"
_CHART = Path(__file__).parents[2] / "deploy" / "chart"
_NAME = "sweetpoint"
_KNOB_FILES = ("cpu.idle", "cpu.shares", "cpu.cfs_*_us", "cpu.weight", "cpu.max", "cpu.max.burst")


class Release:
    """The agents of the chart, in mode ``enforce``; ``values`` are further values of the chart.

    ``before`` are the knobs before the installation.
    """

    def __init__(self, node: RealNode, values: Mapping[str, Any]) -> None:
        self.node = node
        self._helm = Config(kubeconfig_path=str(node.admin_kubeconfig), namespace=NAMESPACE)
        repository, _, tag = AGENT_IMAGE.partition(":")
        image = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
        self.installed = False
        self.before: dict[str, str] = {}
        self.values = {"mode": "enforce", "image": image, "http": {"unprotected": True}, **values}

    def install(self) -> None:
        """Install the release and wait until its agent is ready."""
        self.before = self.knobs()
        self.installed = True
        self._helm.install(
            str(_CHART), _NAME, self.values, namespace=NAMESPACE, create_namespace=True
        )
        self.agent()

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """Upgrade the release to other *values* and wait until its new agent is ready."""
        before = self._uid(self.agent())
        self._helm.upgrade(str(_CHART), _NAME, {**self.values, **values}, namespace=NAMESPACE)
        self._wait_for_another(before)

    def rollback(self) -> None:
        """Go back to the revision before the last one and wait until its agent is ready."""
        before = self._uid(self.agent())
        self._helm.rollback(_NAME)
        self._wait_for_another(before)

    def restart(self) -> None:
        """Restart the agents as ``kubectl rollout restart`` does."""
        before = self._uid(self.agent())
        self._kubectl("rollout", "restart", f"daemonset/{_NAME}")
        self._wait_for_another(before)

    def uninstall(self) -> None:
        """Uninstall the release: the chart's hook ends the agents first.

        The pod of the hook has ended, so the server forgets it before kubelet removes its cgroup.
        """
        self._helm.uninstall(_NAME, timeout=int(WORK_S))
        self.installed = False
        self.node.wait("the end of its cgroups", self._has_only_pods)

    def hooks(self) -> list[Json]:
        """Return the pods of the hook of an uninstallation."""
        return [pod for pod in self.pods() if "job-name" in pod["metadata"]["labels"]]

    def agent(self) -> Json:
        """Return the agent's pod as soon as it is ready."""
        return self.node.wait("a ready agent", self._find_agent)

    def log(self) -> str:
        """Return the agent's log, as kubelet serves it."""
        return self._kubectl("logs", f"daemonset/{_NAME}", "--tail=-1")

    def knobs(self) -> dict[str, str]:
        """Return every knob file of the node's pods, by path; agents' own pods are left out."""
        root = self.node.host.cgroup("cpu", "kubepods")
        agents = [self._uid(pod) for pod in self.pods()]
        found = {}
        for pattern in _KNOB_FILES:
            for file in sorted(root.rglob(pattern)):
                name = str(file.relative_to(root))
                if not any(uid in name for uid in agents):
                    found[name] = file.read_text()
        return found

    def pods(self) -> list[Json]:
        """Return the agents' pods and those of hooks."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        return list(self.node.cluster.admin.get(path)["items"])

    def _has_only_pods(self) -> bool:
        """Whether each cgroup of a pod is one of a pod that the server knows."""
        root = self.node.host.cgroup("cpu", "kubepods")
        found = {path.name for pattern in ("pod*", "*/pod*") for path in root.glob(pattern)}
        pods = self.node.cluster.admin.get("/api/v1/pods")["items"]
        return found <= {f"pod{self._uid(pod)}" for pod in pods}

    def _find_agent(self) -> Json | None:
        for pod in self.pods():
            conditions = pod["status"].get("conditions", [])
            is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
            if is_ready and "deletionTimestamp" not in pod["metadata"]:
                return pod
        return None

    def _wait_for_another(self, uid: str) -> None:
        def is_another() -> bool:
            return self._uid(self._find_agent() or {}) not in ("", uid)

        self.node.wait("another agent", is_another)

    def _uid(self, pod: Json) -> str:
        return str(pod.get("metadata", {}).get("uid", ""))

    def _kubectl(self, *arguments: str) -> str:
        return self.node.cluster.kubectl(f"--namespace={NAMESPACE}", *arguments)
