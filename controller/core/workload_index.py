# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who is here, sorted by how they are treated.

PURE: who came and who went between two looks at the workloads.

Of a thousand workloads a handful changes in a second. Whoever keeps something for each of them is
told everybody who is here now, compares that with whom it was told last, and touches only what
differs. Nothing is lost by that when somebody misses a look: the next comparison makes up for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.settings import Profile

__all__ = (
    "Service",
    "WorkloadDiff",
    "WorkloadIndex",
    "diff_workloads",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Latency-sensitive workloads that are judged together."""

    name: str
    profile: Profile
    cgroups: tuple[CgroupId, ...]


class WorkloadIndex:
    """The workloads of one moment.

    ``best_effort``, ``sensitive`` and ``system`` are by cgroup, in the order in which they
    were given. ``profiles`` are those in use by a service, ``longest_window_ns`` the longest of
    their windows, ``idle_targets`` the cgroups on which best-effort's cpu.idle belongs.
    ``cpu_limits`` and ``memory_limits`` are what best-effort workloads are held to in any case, in
    CPUs and bytes.
    """

    __slots__ = (
        "best_effort",
        "cpu_limits",
        "idle_targets",
        "longest_window_ns",
        "memory_limits",
        "profiles",
        "sensitive",
        "services",
        "system",
    )

    def __init__(self, workloads: Sequence[Workload], profiles: Mapping[str, Profile]) -> None:
        """:raises KeyError: a latency-sensitive workload names a profile that does not exist."""
        by_class: dict[QosClass, dict[CgroupId, Workload]] = {qos: {} for qos in QosClass}
        for workload in workloads:
            by_class[workload.qos][workload.cgroup] = workload
        self.best_effort = by_class[QosClass.BE]
        self.system = by_class[QosClass.SYSTEM]
        self.cpu_limits = {
            cgroup: each.limit_cpus
            for cgroup, each in self.best_effort.items()
            if each.limit_cpus is not None
        }
        self.memory_limits = {
            cgroup: float(each.limit_memory_bytes)
            for cgroup, each in self.best_effort.items()
            if each.limit_memory_bytes is not None
        }
        self.idle_targets = dict.fromkeys(
            CgroupId(each.idle_at.scope, each.idle_at.id) if each.idle_at else cgroup
            for cgroup, each in self.best_effort.items()
        )
        self.sensitive = {cgroup: each.service for cgroup, each in by_class[QosClass.LS].items()}
        members: dict[str, list[Workload]] = {}
        for workload in by_class[QosClass.LS].values():
            members.setdefault(workload.service, []).append(workload)
        self.services = {
            name: Service(
                name=name,
                profile=profiles[group[0].profile],
                cgroups=tuple(each.cgroup for each in group),
            )
            for name, group in members.items()
        }
        in_use = {service.profile.name: service.profile for service in self.services.values()}
        self.profiles = tuple(in_use.values())
        self.longest_window_ns = max(
            (spec.window_ns for profile in self.profiles for spec in profile.indicators), default=0
        )


class WorkloadDiff(NamedTuple):
    """Who differs. A workload that was changed (its class, its name) went as it was, and came."""

    added: tuple[Workload, ...]
    removed: tuple[Workload, ...]

    def of_class(self, qos: QosClass) -> "WorkloadDiff":
        """Return those of a class; who left the class went."""
        return WorkloadDiff(*(tuple(w for w in part if w.qos is qos) for part in self))

    def by_fields(self, *fields: str) -> "WorkloadDiff":
        """Return those who came or went also where only these *fields* are compared."""
        key = attrgetter(*fields)
        gone, came = set(map(key, self.removed)), set(map(key, self.added))
        return WorkloadDiff(
            tuple(w for w in self.added if key(w) not in gone),
            tuple(w for w in self.removed if key(w) not in came),
        )


_Roll = tuple[Workload, ...]
# Many ask for the same: both rolls, and the answer.
_last: tuple[_Roll, _Roll, WorkloadDiff] = ((), (), WorkloadDiff((), ()))


def diff_workloads(before: _Roll, after: _Roll) -> WorkloadDiff:
    """Return who is in one of *before* and *after* only, *came* in the order of *after*.

    It is quick where those who stayed are the same objects, and right where they are not.
    """
    global _last
    known = _last
    if known[0] is before and known[1] is after:
        return known[2]
    found = _compare(before, after)
    _last = before, after, found
    return found


def _compare(before: _Roll, after: _Roll) -> WorkloadDiff:
    left = dict(zip(map(id, before), before, strict=True))
    came = [workload for workload in after if left.pop(id(workload), None) is None]
    gone = list(left.values())
    if came and gone:
        stayed = set(came).intersection(gone)
        came = [workload for workload in came if workload not in stayed]
        gone = [workload for workload in gone if workload not in stayed]
    return WorkloadDiff(tuple(came), tuple(gone))
