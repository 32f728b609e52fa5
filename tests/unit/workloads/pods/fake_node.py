# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of a node and the directories of their cgroups, without a kernel or an API server."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from controller.config.sections.io import IoClassConfig
from controller.config.sections.kubernetes_profiles import KubeProfilesConfig
from controller.config.sections.resctrl import ResctrlClass
from controller.core.model import Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.workloads.pods.classify import ClassRules
from controller.workloads.pods.pod import Pod, Pods, RuntimePod
from controller.workloads.pods.pod_class import PodClasses
from controller.workloads.pods.profile_choice import ProfileChoice, profile_chooser
from controller.workloads.pods.source import KubernetesSource
from tests.support.kube.pods import profiles

CHOOSE = profile_chooser(profiles("default", "redis"), KubeProfilesConfig(), "default")
LEVELS = {"Guaranteed": "", "Burstable": "burstable/", "BestEffort": "besteffort/"}
# The names of the cgroups of containers.
CONTAINERS = ("c0" * 32, "c1" * 32)
OWN = "00000000-0000-0000-0000-0000000000ff"


def uid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012x}"


def pod(number: int, qos_class: str = "Burstable", **changes: Any) -> Pod:
    fields = {"uid": uid(number), "namespace": "shop", "name": f"p{number}", "priority": 0}
    return Pod(**(fields | {"qos_class": qos_class} | changes))  # type: ignore[arg-type]


class Node:
    """Directories in the shape of kubepods, and the pods that the API server lists."""

    def __init__(
        self,
        mount: Path,
        roots: tuple[str, ...] | None = None,
        names: tuple[str, str] = ("", ""),
        version: Literal["v1", "v2"] = "v1",
    ) -> None:
        self.mount = mount
        self.pods = Pods()
        hierarchy = "cpu" if version == "v1" else "v2"
        layout = CgroupLayout(hierarchy=hierarchy, mount=mount, version=version, unified=None)
        rules = ClassRules(own_uid=OWN)
        self.told: dict[str, RuntimePod] = {}
        self.classes: list[ResctrlClass] = []
        self.io_classes: list[IoClassConfig] = []
        self.source = KubernetesSource(
            layout,
            lambda: self.pods,
            rules,
            roots,
            names,
            runtime_pods=lambda: self.told,
        )
        self._given = PodClasses()
        self.now_s = 0

    def start(self, *pods: Pod, root: str = "kubepods") -> None:
        """Make the cgroups of *pods*."""
        for each in pods:
            path = self.mount / root / f"{LEVELS[each.qos_class]}pod{each.uid}"
            (path / CONTAINERS[0]).mkdir(parents=True)

    def list(self, *pods: Pod) -> None:
        """Let the API server list exactly *pods*."""
        self.pods = Pods(pods={each.uid: each for each in pods}, synced=True)

    def tell(
        self, pod: Pod, score: int = 1000, source: str = "api", *, limited: bool = False
    ) -> None:
        """Let the runtime tell *pod*, which kubelet has from *source*; *score*: oom_score_adj.

        *limited*: a container has a quota of a plugin of the runtime.
        """
        texts = {"kubernetes.io/config.source": source}
        told = RuntimePod(pod.uid, pod.namespace, pod.name, pod.labels, texts, score, limited)
        self.told = {**self.told, pod.uid: told}

    def claim(self, *claims: Pod) -> None:
        """Let the API server list *claims* too, which claim to be static pods of one id."""
        self.pods = replace(self.pods, claims={claims[0].uid: claims})

    def scan(
        self, after_s: int = 1, choose: Callable[[Pod | None], ProfileChoice] = CHOOSE
    ) -> tuple[Workload, ...]:
        self.now_s += after_s
        classes = PodClasses(tuple(self.classes), tuple(self.io_classes))
        if classes != self._given:
            self._given = classes
        return self.source.scan(self.now_s * NS_PER_SEC, choose, self._given)

    def run(self, *pods: Pod) -> tuple[Workload, ...]:
        self.start(*pods)
        self.list(*pods)
        return self.scan()
