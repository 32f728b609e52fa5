# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Index of the workloads by class and service."""

from collections.abc import Iterable, Mapping, Sequence
import copy
from dataclasses import dataclass, replace

from controller.core.knob_values import IDLE, lowest_weight
from controller.core.model import CgroupId, IndicatorName, Knob, Pause, QosClass, Target, Workload
from controller.core.settings import IndicatorSpec, Profile, io_class_of
from controller.core.tuning import DEFAULT_LIMITS, tightest_limits

__all__ = ("Service", "WorkloadIndex", "unpaused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service: latency-sensitive workloads that have their indicators in common.

    ``image`` identifies what its workloads run; empty: not known. One that is ``paused`` is
    measured, and not protected.
    """

    name: str
    profile: Profile
    cgroups: tuple[CgroupId, ...]
    image: str = ""
    paused: bool = False

    @property
    def figure(self) -> IndicatorSpec | None:
        """The indicator of the service's own figure; ``None`` if it has none."""
        own = (each for each in self.profile.indicators if each.name is IndicatorName.SERVICE)
        return next(own, None)


class WorkloadIndex:
    """The workloads of one instant, by class and by service.

    ``best_effort`` and ``system`` map cgroups to workloads, ``sensitive`` maps the cgroups of
    latency-sensitive workloads to the names of their services; all in the order of the list.
    Best-effort workloads that are paused are in ``paused`` and, since they are measured and never
    changed, in ``system``. ``paused_services`` are names. ``profiles`` are those in use by a
    service that is not paused, ``limits`` those of each knob that satisfy all of these,
    ``longest_window_ns`` is the longest window of any service.
    ``idle_targets`` are the cgroups on which cpu.idle is set for best-effort work, with its value:
    idle, or the lowest weight where the cgroup may not be idle. ``wholes`` are the cgroups of what
    may be evicted (``Workload.whole``), paused or not. ``quota_parents`` maps best-effort workloads
    to the parent cgroup that may have a quota for all below it, and contains no paused workload.
    ``quota_targets`` are both. ``memory_targets`` are the cgroups of ``Workload.memory_at``, but
    those above a paused workload. ``cpuset_targets`` are the cgroups whose CPUs are limited: those
    of ``quota_parents``, else best-effort pods. ``cpu_limits`` (CPUs) and ``memory_limits``
    (bytes) are the limits that best-effort workloads requested themselves, which hold in any case.
    ``memory_places`` has the cgroup of the memory controller for each of the latter, and
    ``memory_placed`` all of these. ``io_classes`` has the class for disks of services and system
    workloads, without paused services. Knobs of the cgroups in ``served`` take nothing from
    best-effort work.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        profiles: Mapping[str, Profile],
        pause: Pause | None = None,
    ) -> None:
        """Sort *workloads*; *profiles* are by name, *pause* is in force.

        :raises KeyError: a latency-sensitive workload names a profile that does not exist.
        """
        by_class: dict[QosClass, dict[CgroupId, Workload]] = {qos: {} for qos in QosClass}
        self.paused: dict[CgroupId, Workload] = {}
        for workload in workloads:
            if _is_paused(workload, pause):
                self.paused[workload.cgroup] = workload
                by_class[QosClass.SYSTEM][workload.cgroup] = workload
            else:
                by_class[workload.qos][workload.cgroup] = workload
        self.best_effort = by_class[QosClass.BE]
        self.system = by_class[QosClass.SYSTEM]
        self._set_requests()
        self._set_targets()
        self.wholes = frozenset(
            each.whole for each in (*self.best_effort.values(), *self.paused.values())
        )
        sensitive = by_class[QosClass.LS]
        self.sensitive = {cgroup: each.service for cgroup, each in sensitive.items()}
        self.services = _services_of(sensitive.values(), profiles, pause)
        services = self.services.values()
        self.paused_services = frozenset(each.name for each in services if each.paused)
        others = {**by_class[QosClass.LS], **by_class[QosClass.SYSTEM]}
        self.io_classes = {
            cgroup: name
            for cgroup, each in others.items()
            if each.service not in self.paused_services and (name := io_class_of(each, profiles))
        }
        self.served = frozenset(self.sensitive) | self.io_classes.keys()
        in_use = {each.profile.name: each.profile for each in services if not each.paused}
        self.profiles = tuple(in_use.values())
        self.limits = {
            knob: tightest_limits((each.limits.get(knob, most) for each in self.profiles), most)
            for knob, most in DEFAULT_LIMITS.items()
        }
        # The guard's limit of v1 moves as memory.high does on v2.
        self.limits[Knob.MEMORY_MAX] = self.limits[Knob.MEMORY_HIGH]
        self.longest_window_ns = max(
            (spec.window_ns for service in services for spec in service.profile.indicators),
            default=0,
        )

    def _set_requests(self) -> None:
        """Collect what best-effort workloads requested themselves."""
        self.cpu_limits = {
            cgroup: each.limit_cpus
            for cgroup, each in self.best_effort.items()
            if each.limit_cpus is not None
        }
        self.cpu_requests = {cgroup: cpus for cgroup, cpus in self.cpu_limits.items() if cpus > 0}
        self.memory_limits = {
            cgroup: float(each.limit_memory_bytes)
            for cgroup, each in self.best_effort.items()
            if each.limit_memory_bytes is not None
        }
        self.memory_places = {
            cgroup: cgroup if at is None else at.place
            for cgroup in self.memory_limits
            for at in (self.best_effort[cgroup].own_memory_at,)
        }
        self.memory_placed = frozenset(self.memory_places.values())

    def _set_targets(self) -> None:
        """Find the cgroups on which knobs are set for best-effort workloads."""
        self.idle_targets = {
            each.idle_at.place
            if each.idle_at and not self._has_paused(each.idle_at)
            else cgroup: IDLE if each.may_idle else lowest_weight(cgroup.hierarchy)
            for cgroup, each in self.best_effort.items()
        }
        parents = {each.quota_at for each in self.best_effort.values()}
        shared = {each for each in parents if each and not self._has_paused(each)}
        self.quota_parents = {
            cgroup: each.quota_at.place
            for cgroup, each in self.best_effort.items()
            if each.quota_at and each.quota_at in shared
        }
        self.quota_targets = frozenset((*self.best_effort, *self.quota_parents.values()))
        self.cpuset_targets = frozenset(
            self.quota_parents.get(cgroup, each.whole)
            for cgroup, each in self.best_effort.items()
            if not each.may_own_cpus
        )
        limited = {each.memory_at for each in self.best_effort.values() if each.memory_at}
        self.memory_targets = frozenset(
            each.place for each in limited if not self._has_paused(each)
        )

    def with_profiles(self, profiles: Mapping[str, Profile]) -> "WorkloadIndex":
        """Return this index with other *profiles*, by service; itself if there are none.

        Only the indicators of a profile may differ.
        """
        if not profiles:
            return self
        index = copy.copy(self)
        index.services = {
            name: replace(service, profile=profiles[name]) if name in profiles else service
            for name, service in self.services.items()
        }
        return index

    def _has_paused(self, target: Target) -> bool:
        """Return whether a knob of *target* acts on a workload that is paused."""
        return any(each.path.startswith(f"{target.path}/") for each in self.paused.values())


def _services_of(
    workloads: Iterable[Workload], profiles: Mapping[str, Profile], pause: Pause | None
) -> dict[str, Service]:
    """Return the services of latency-sensitive *workloads* by name."""
    members: dict[str, list[Workload]] = {}
    for workload in workloads:
        members.setdefault(workload.service, []).append(workload)
    return {
        name: Service(
            name=name,
            profile=profiles[group[0].profile],
            cgroups=tuple(each.cgroup for each in group),
            image=" ".join(sorted({each.image for each in group if each.image})),
            paused=pause is not None and pause.covers_service(name),
        )
        for name, group in members.items()
    }


def _is_paused(workload: Workload, pause: Pause | None) -> bool:
    return (
        pause is not None
        and workload.qos is QosClass.BE
        and pause.covers_workload(workload.whole_name)
    )


def unpaused(workloads: tuple[Workload, ...], pause: Pause | None) -> tuple[Workload, ...]:
    """Return *workloads*, with those of best-effort that are paused as system workloads.

    The same object if none is.
    """
    if pause is None or not any(_is_paused(each, pause) for each in workloads):
        return workloads
    return tuple(
        each._replace(qos=QosClass.SYSTEM) if _is_paused(each, pause) else each
        for each in workloads
    )
