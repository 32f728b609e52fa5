# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who is here, sorted by how they are treated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.model import CgroupId, QosClass, Workload
from controller.settings import Profile

__all__ = ("Roster", "Service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Latency-sensitive workloads that are judged together."""

    name: str
    profile: Profile
    cgroups: tuple[CgroupId, ...]


class Roster:
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
