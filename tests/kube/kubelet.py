# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The part of kubelet that the tests need: starts pods, reports them, completes deletions."""

from dataclasses import dataclass
from pathlib import Path
import secrets
import threading

from tests.kube.client import Json, Refused
from tests.kube.cluster import Cluster
from tests.kube.kubepods import Kubepods

__all__ = ("Kubelet", "Running")

_PERIOD_S = 0.1


@dataclass(frozen=True)
class Running:
    """A started pod: the object at the server, its cgroup, and that of its container."""

    pod: Json
    cgroup: Path
    container: Path

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])


class Kubelet:
    """A node and its pods. While the context is open, it completes deletions of pods.

    ``ended`` are the uids of the deleted pods, in order.
    """

    def __init__(self, cluster: Cluster, node: str, kubepods: Kubepods) -> None:
        self.node, self.kubepods = node, kubepods
        self.ended: list[str] = []
        self._cluster = cluster
        self._cgroups: dict[str, Path] = {}
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kubelet")
        kubepods.make_qos_levels()
        cluster.make_node(node)

    def __enter__(self) -> "Kubelet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        assert self._failure is None, f"the test's kubelet failed: {self._failure!r}"

    def start(self, pod: Json) -> Running:
        """Make the cgroups of *pod* with one container and report that the pod runs."""
        meta, status = pod["metadata"], pod["status"]
        annotations = meta.get("annotations", {})
        # The uid of a static pod on its node is the hash of its manifest.
        uid = annotations.get("kubernetes.io/config.hash", meta["uid"])
        container = secrets.token_hex(32)
        cgroup = self.kubepods.pod(uid, status["qosClass"])
        path = self.kubepods.make_container(cgroup, container)
        self._cgroups[meta["uid"]] = cgroup
        return Running(self._report(pod, container), cgroup, path)

    def _report(self, pod: Json, container: str) -> Json:
        name = pod["spec"]["containers"][0]["name"]
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        report = {
            "name": name,
            "image": "example.org/main:1",
            "imageID": "",
            "containerID": f"containerd://{container}",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": state,
        }
        conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": [report]}
        return self._cluster.admin.patch(f"{_path(pod)}/status", {"status": status})

    def _run(self) -> None:
        try:
            while not self._closing.wait(_PERIOD_S):
                try:
                    self._finish_deletions()
                except (OSError, Refused):  # a test has stopped the API server
                    continue
        except BaseException as error:  # reported by __exit__
            self._failure = error

    def _finish_deletions(self) -> None:
        selector = f"fieldSelector=spec.nodeName%3D{self.node}"
        for pod in self._cluster.admin.get(f"/api/v1/pods?{selector}")["items"]:
            if "deletionTimestamp" not in pod["metadata"]:
                continue
            uid = pod["metadata"]["uid"]
            if (cgroup := self._cgroups.pop(uid, None)) is not None:
                self.kubepods.remove(cgroup)
            self._cluster.admin.delete(f"{_path(pod)}?gracePeriodSeconds=0")
            self.ended.append(uid)


def _path(pod: Json) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
