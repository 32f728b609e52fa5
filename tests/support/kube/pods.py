# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods as the API server sends them, shared by tests: raw objects, parsed pods, workloads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.config.sections.kubernetes_profiles import KubeProfilesConfig
from controller.core.model import Workload
from controller.core.settings import Profile
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.workloads.pods.classify import ClassRules
from controller.workloads.pods.pod import Pod, Pods, parse_pod
from controller.workloads.pods.profile_choice import profile_chooser
from controller.workloads.pods.source import KubernetesSource

__all__ = (
    "AGENT_UID",
    "UID",
    "as_workload",
    "parsed_pod",
    "plain_pod",
    "profiles",
    "raw_pod",
    "raw_running_pod",
)

UID = "0b8d3a52-3f0e-4c6e-9d7a-1f2e3d4c5b6a"
# The uid of the agent's own pod.
AGENT_UID = "11111111-3f0e-4c6e-9d7a-1f2e3d4c5b6a"


def raw_pod(**metadata: Any) -> dict[str, Any]:
    """Return a minimal BestEffort pod; *metadata* replaces fields of its metadata."""
    return {
        "metadata": {"uid": UID, "namespace": "shop", "name": "job", **metadata},
        "spec": {},
        "status": {"qosClass": "BestEffort", "phase": "Running"},
    }


def raw_running_pod(**metadata: Any) -> dict[str, Any]:
    """Return a Burstable pod with a running and a terminated container."""
    return {
        "metadata": {"uid": UID, "namespace": "shop", "name": "web-7c9-x2x", **metadata},
        "spec": {"priority": 0, "serviceAccountName": "web"},
        "status": {
            "qosClass": "Burstable",
            "phase": "Running",
            "containerStatuses": [
                {"containerID": f"containerd://{'ab' * 32}", "state": {"running": {}}},
                {"containerID": f"containerd://{'cd' * 32}", "state": {"terminated": {}}},
            ],
        },
    }


def parsed_pod(qos_class: str = "Burstable", **metadata: Any) -> Pod:
    """Return ``raw_running_pod`` as parsed, with another Kubernetes QoS class."""
    raw = raw_running_pod(**metadata)
    raw["status"]["qosClass"] = qos_class
    return parse_pod(raw)


def plain_pod(namespace: str = "shop", **changes: Any) -> Pod:
    """Return a Burstable pod; *changes* replace its fields."""
    pod = Pod(uid=UID, namespace=namespace, name="p", qos_class="Burstable", priority=0)
    return replace(pod, **changes)


def as_workload(mount: Path, raw: dict[str, Any]) -> tuple[Workload, str]:
    """Return the workload made from the BestEffort pod in *raw*, and the problem of its labels.

    The cgroup of the pod is made below *mount*.
    """
    found = parse_pod(raw)
    (mount / "kubepods" / "besteffort" / f"pod{found.uid}").mkdir(parents=True)
    layout = CgroupLayout(hierarchy="cpu", mount=mount, version="v1", unified=None)
    pods = Pods(pods={found.uid: found}, synced=True)
    source = KubernetesSource(layout, lambda: pods, ClassRules(own_uid=AGENT_UID))
    choose = profile_chooser(profiles("default"), KubeProfilesConfig(), "default")
    (workload,) = source.scan(NS_PER_SEC, choose)
    return workload, next((text for each, text in source.problems if each is found), "")


def profiles(*names: str, evicting: tuple[str, ...] = ()) -> dict[str, Profile]:
    """Return profiles without indicators by name; those in *evicting* enable evictions."""
    return {
        name: Profile(
            name=name,
            indicators=(),
            sched_idle=True,
            be_share_min=0.5,
            idle_oncpu_ratio=0.01,
            evict_enabled=name in evicting,
        )
        for name in (*names, *evicting)
    }
