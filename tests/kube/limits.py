# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU limits of containers on a real node: their cgroups, knobs and resizes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kube.client import Json
from tests.kube.real_node import RealNode

__all__ = (
    "cgroup",
    "cpu",
    "knobs",
    "pod_cgroup",
    "quota",
    "resize",
    "squeezed",
    "statuses",
    "wait_for_resize",
)


def cpu(limit: str, request: str = "50m") -> Json:
    return {"limits": {"cpu": limit}, "requests": {"cpu": request}}


def statuses(pod: Json) -> dict[str, Json]:
    """Return the status of every container of *pod* by name."""
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    return {each["name"]: each for kind in kinds for each in pod["status"].get(kind, [])}


def pod_cgroup(node: RealNode, pod: Json) -> Path:
    levels = {"Burstable": "burstable/", "Guaranteed": "", "BestEffort": "besteffort/"}
    level = levels[pod["status"]["qosClass"]]
    return node.host.cgroup("cpu", f"kubepods/{level}pod{pod['metadata']['uid']}")


def cgroup(node: RealNode, pod: Json, name: str) -> Path:
    """Return the cgroup of the present container *name* of *pod*."""
    pod = node.pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
    identity = statuses(pod).get(name, {}).get("containerID", "")
    assert identity, f"{name} has not started"
    identity = str(identity).removeprefix("containerd://")
    return pod_cgroup(node, pod) / identity


def quota(cgroup: Path) -> float | None:
    """Return the CPUs that the quota of *cgroup* allows; ``None`` for no limit."""
    quota_us = int((cgroup / "cpu.cfs_quota_us").read_text())
    return None if quota_us < 0 else quota_us / int((cgroup / "cpu.cfs_period_us").read_text())


def squeezed(node: RealNode, pod: Json, name: str, below: float = 0.15) -> Path:
    """Wait until the container *name* is squeezed and return its cgroup."""

    def find() -> Path | None:
        path = cgroup(node, pod, name)
        return path if (quota(path) or 9.0) < below else None

    return node.wait(f"a squeeze of {name}", find)


def knobs(cgroup: Path) -> dict[str, str]:
    """Return the knobs of *cgroup* and all cgroups in it."""
    return {
        str(file.relative_to(cgroup)): file.read_text()
        for pattern in ("cpu.cfs_*_us", "cpu.idle", "cpu.shares")
        for file in sorted(cgroup.rglob(pattern))
    }


def resize(node: RealNode, pod: Json, spec: Mapping[str, Any]) -> None:
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/resize"
    kind = "application/strategic-merge-patch+json"
    node.cluster.admin.call("PATCH", path, {"spec": dict(spec)}, kind)


def wait_for_resize(node: RealNode, pod: Json, name: str, amounts: Mapping[str, Any]) -> None:
    """Wait until kubelet reports *amounts* as the resources of the container *name*."""

    def is_done() -> bool:
        now = node.pod(pod["metadata"]["namespace"], pod["metadata"]["name"])
        kinds = {each["type"] for each in now["status"]["conditions"] if each["status"] == "True"}
        waits = kinds & {"PodResizePending", "PodResizeInProgress"}
        return not waits and bool(statuses(now)[name]["resources"] == amounts)

    node.wait(f"the resize of {name}", is_done)
