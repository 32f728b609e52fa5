# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A node full of pods of every class, among which something changes all the time."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
import time
from typing import NamedTuple

from tests.helpers import remove_cgroup
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet, Running

__all__ = ("Crowd", "Expected")

LS, BE, SYSTEM = "latency-sensitive", "best-effort", "system"
_QOS, _PROFILE = "sweetpoint.dev/qos", "sweetpoint.dev/profile"
# As kubectl apply leaves it: pods have some kilobytes, little of which means anything to us.
_BULK = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 4000}


class Expected(NamedTuple):
    """What the agent must make of a pod; only a service has a profile."""

    qos: str
    profile: str = ""


class _Kind(NamedTuple):
    qos: str
    expected: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    priority_class: str = ""


# Of twenty pods four serve, one belongs to the system, and not all of the others say in the same
# way that they are best-effort.
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

    Every two pods that serve have an owner. Those that change come from the older half, so the
    newest keep what runs in them.
    """

    def __init__(self, cluster: Cluster, kubelet: Kubelet, namespace: str) -> None:
        self._cluster, self._kubelet, self._namespace = cluster, kubelet, namespace
        self._next = 0
        self._members: deque[_Member] = deque()
        self._serving: deque[_Member] = deque()
        self._lowered: deque[_Member] = deque()
        self._is_lowering = False

    def fill(self, size: int) -> None:
        """Make *size* pods, which are not to change yet; takes a minute for a thousand."""
        for _ in range(size):
            self._create()
        for member in self._members:
            kind = member.number % len(_KINDS)
            if 2 * size // 5 <= member.number < size // 2:  # the oldest are to go
                if kind in _SERVES:
                    self._serving.append(member)
                elif kind == _LOWERED:
                    self._lowered.append(member)

    @property
    def expected(self) -> dict[str, Expected]:
        """What the agent must know of each pod now, by namespace and name."""
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
        """Change something and yield how often that was done, again and again, at this rate.

        In turn a pod comes, goes, serves or serves no more, gets another profile, and reports.
        After a multiple of ten changes there are as many of each class as before.
        """
        kinds = (self._create, self._delete, self._lower, self._tune, self._report)
        began = time.monotonic()
        for number in range(round(per_second * seconds)):
            time.sleep(max(0.0, began + number / per_second - time.monotonic()))
            kinds[number % len(kinds)]()
            yield number + 1

    def close(self) -> None:
        """Remove what the kubelet's own cgroups do not hold."""
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
        # It has its time to stop, then kubelet finds its cgroup empty and reports its end.
        self._cluster.admin.delete(_path(running))
        self._kubelet.kubepods.remove(running.cgroup)
        if (folder := self._mirrored(running.cgroup)) is not None:
            folder.rmdir()
        self._cluster.admin.delete(f"{_path(running)}?gracePeriodSeconds=0")

    def _lower(self) -> None:
        """Make batch work of a service's pod, the next time the other way round."""
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
        # What means nothing to the agent comes most often.
        path = f"{_path(self._members[-1].running)}/status"
        self._cluster.admin.patch(path, {"status": {"message": f"at {time.monotonic_ns()}"}})

    def _label(self, member: _Member, key: str, value: str | None) -> None:
        body = {"metadata": {"labels": {key: value}}}
        self._cluster.admin.patch(_path(member.running), body)

    def _mirrored(self, path: Path) -> Path | None:
        """Return where a v1 host has *path* in its cgroup2 tree, as systemd makes it there."""
        layout = self._kubelet.kubepods.layout
        if layout.version == "v2" or layout.unified is None:
            return None
        return layout.unified / path.relative_to(layout.mount)


def _path(running: Running) -> str:
    meta = running.pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
