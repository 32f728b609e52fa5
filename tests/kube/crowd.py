# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A node full of pods of every class, with changes at a fixed rate."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
import time
from typing import NamedTuple

from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running
from tests.support.cgroups import remove_cgroup

__all__ = ("Crowd", "Expected")

LS, BE, SYSTEM = "latency-sensitive", "best-effort", "system"
_QOS, _PROFILE = "sweetpoint.dev/qos", "sweetpoint.dev/profile"
# An annotation like that of kubectl apply: pods have some kilobytes that the agent does not use.
_BULK = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 4000}


class Expected(NamedTuple):
    """The expected class and profile of a pod; only a service has a profile."""

    qos: str
    profile: str = ""


class _Kind(NamedTuple):
    qos: str
    expected: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    priority_class: str = ""


# Of twenty pods four are services and one is of class system; the others are best-effort, marked as
# such in different ways.
_KINDS = (
    *([_Kind("Burstable", LS)] * 2),
    *([_Kind("Guaranteed", LS)] * 2),
    _Kind("Burstable", SYSTEM, priority_class="system-node-critical"),
    _Kind("Guaranteed", BE, {_QOS: BE}),
    _Kind("Burstable", BE, {"koordinator.sh/qosClass": "BE"}),
    _Kind("Burstable", BE, {}, {"katalyst.kubewharf.io/qos_level": "reclaimed_cores"}),
    *([_Kind("BestEffort", BE)] * 12),
)
_SERVES, _LOWERED = (2, 3), 5


@dataclass
class _Member:
    number: int
    running: Running
    qos: str
    profile: str = "default"


class Crowd:
    """Pods of *namespace* on the node of *kubelet*, in real cgroups.

    Two service pods each share an owner. Changes concern the older half, so that the load in the
    newest pods keeps running.
    """

    def __init__(self, cluster: Cluster, kubelet: Kubelet, namespace: str) -> None:
        self._cluster, self._kubelet, self._namespace = cluster, kubelet, namespace
        self._next = 0
        self._members: deque[_Member] = deque()
        self._serving: deque[_Member] = deque()
        self._lowered: deque[_Member] = deque()
        self._is_lowering = False

    def fill(self, size: int) -> None:
        """Make *size* pods, without changes; takes a minute for a thousand."""
        for _ in range(size):
            self._create()
        for member in self._members:
            kind = member.number % len(_KINDS)
            if 2 * size // 5 <= member.number < size // 2:  # the oldest are deleted
                if kind in _SERVES:
                    self._serving.append(member)
                elif kind == _LOWERED:
                    self._lowered.append(member)

    @property
    def expected(self) -> dict[str, Expected]:
        """The expected class and profile of each pod now, by namespace and name."""
        return {
            f"{self._namespace}/{m.running.name}": Expected(m.qos, m.profile if m.qos == LS else "")
            for m in self._members
        }

    @property
    def newest(self) -> list[Running]:
        """The younger half, oldest first."""
        members = list(self._members)
        return [m.running for m in members[len(members) // 2 :]]

    def changes(self, per_second: float, seconds: float) -> Iterator[int]:
        """Make changes at this rate, and yield the number of changes after each.

        In turn: a pod is created, deleted, changes its class, changes its profile, changes its
        status. After a multiple of ten changes each class has as many pods as before.
        """
        kinds = (self._create, self._delete, self._lower, self._tune, self._report)
        began = time.monotonic()
        for number in range(round(per_second * seconds)):
            time.sleep(max(0.0, began + number / per_second - time.monotonic()))
            kinds[number % len(kinds)]()
            yield number + 1

    def close(self) -> None:
        """Remove the cgroups that are not below those of the kubelet."""
        if (base := self._mirrored(self._kubelet.kubepods.base)) is not None:
            remove_cgroup(base)

    def _create(self) -> None:
        number, self._next = self._next, self._next + 1
        kind = _KINDS[number % len(_KINDS)]
        pair = number // len(_KINDS) * 2 + number % len(_KINDS) // 2
        name = f"pod-{number}"
        pod = self._cluster.make_pod(
            self._namespace,
            name,
            node=self._kubelet.node,
            qos=kind.qos,
            labels=kind.labels,
            annotations={**_BULK, **kind.annotations},
            owner={"kind": "ReplicaSet", "name": f"web-{pair}" if kind.expected == LS else name},
            spec={"priorityClassName": kind.priority_class} if kind.priority_class else {},
        )
        running = self._kubelet.start(pod)
        if (folder := self._mirrored(running.cgroup)) is not None:
            folder.mkdir(parents=True)
        self._members.append(_Member(number, running, kind.expected))

    def _delete(self) -> None:
        running = self._members.popleft().running
        # The grace period begins; kubelet finds the cgroup empty and reports the end.
        self._cluster.admin.delete(_path(running))
        self._kubelet.kubepods.remove(running.cgroup)
        if (folder := self._mirrored(running.cgroup)) is not None:
            folder.rmdir()
        self._cluster.admin.delete(f"{_path(running)}?gracePeriodSeconds=0")

    def _lower(self) -> None:
        """Make a service's pod best-effort, and in the next call a best-effort pod a service."""
        self._is_lowering = not self._is_lowering
        source, sink = self._serving, self._lowered
        if not self._is_lowering:
            source, sink = sink, source
        member = source.popleft()
        self._label(member, _QOS, BE if self._is_lowering else None)
        member.qos = BE if self._is_lowering else LS
        sink.append(member)

    def _tune(self) -> None:
        member = self._serving[0]
        member.profile = "redis" if member.profile == "default" else "default"
        self._label(member, _PROFILE, member.profile)
        self._serving.rotate()

    def _report(self) -> None:
        # A change that the agent does not use; these are the most frequent ones.
        path = f"{_path(self._members[-1].running)}/status"
        self._cluster.admin.patch(path, {"status": {"message": f"at {time.monotonic_ns()}"}})

    def _label(self, member: _Member, key: str, value: str | None) -> None:
        body = {"metadata": {"labels": {key: value}}}
        self._cluster.admin.patch(_path(member.running), body)

    def _mirrored(self, path: Path) -> Path | None:
        """Return *path* in the cgroup2 tree of a v1 host, as systemd creates it there."""
        layout = self._kubelet.kubepods.layout
        if layout.version == "v2" or layout.unified is None:
            return None
        return layout.unified / path.relative_to(layout.mount)


def _path(running: Running) -> str:
    meta = running.pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
