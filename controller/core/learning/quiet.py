# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When a service is undisturbed, so that its indicators show what is normal for it.

Best-effort work and work outside all workloads must use hardly any CPU. It also suffices that
best-effort work is known to do no harm: it inflicts hardly any wait for a CPU or a disk, where
probes measure who delays whom, or the service lacks no memory at all. On the other channels only
idleness proves that nothing is disturbed. Work without a CPU may still hold memory or keep a disk
busy, so there idleness is not enough.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum

from controller.core.decision import IndicatorStatus
from controller.core.indicators.counter_based import OF_DISKS, OF_MEMORY
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.model import CgroupId, Channel, IndicatorName, Workload
from controller.core.settings import IndicatorSpec
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("Disturbance", "QuietMonitor")

# Share of all CPUs that best-effort work may use, work outside all workloads, and the hypervisor.
# The second includes the clients of services, kubelet and the kernel, which are there all the time.
_IDLE_SHARE = 0.03
_OUTSIDE_SHARE = 1 / 3
_STEAL_SHARE = 0.05
# Part of a service's on-CPU time that best-effort work may inflict as wait. A percentile of 99 is
# above one in a hundred waits, and a wait is shorter than the work between two of them.
_INFLICTED_SHARE = 0.005
# Part of the time in which the service's own quota may throttle it.
_THROTTLED_SHARE = 0.01
# Time until caches and queues have recovered from a disturbance.
_SETTLE_NS = 3 * NS_PER_SEC


class Disturbance(StrEnum):
    """Why the values of a service are not taken as normal."""

    NONE = ""
    BEST_EFFORT = "best-effort work is running"
    HOLDS_MEMORY = "best-effort work holds memory that the service lacks"
    USES_DISKS = "best-effort work uses the disks"
    PAUSED = "paused best-effort work is running"
    OUTSIDE = "work outside all workloads uses more than a third of the CPUs"
    STEAL = "the hypervisor takes CPU time"
    THROTTLED = "the service is throttled by its own quota"
    SUFFERS = "the service does not keep its own objective"
    SETTLING = "a disturbance has just ended"
    NO_DATA = "there is no data"
    NO_LOAD = "the service hardly runs"
    FEW_EVENTS = "there are too few events for a value"


class QuietMonitor:
    """Follows what disturbs the whole node; asked per service for what disturbs that service.

    ``present`` are the disturbances of the node in the last tick, also where no service suffers.
    """

    def __init__(self) -> None:
        self._now_ns = 0
        self._best_effort: Collection[CgroupId] = ()
        # Of each disturbance of the node, when it was last present.
        self._last_ns: dict[Disturbance, int] = {}
        self.present: tuple[Disturbance, ...] = ()

    def update(
        self,
        tracker: IndicatorTracker,
        workload_index: WorkloadIndex,
        cpus: int,
        now_ns: int,
        hold: bool,
    ) -> None:
        """Take one tick on a machine of *cpus* CPUs; *hold*: it is the first one after a gap."""
        self._now_ns = now_ns
        self._best_effort = workload_index.best_effort

        def use_of(workloads: Mapping[CgroupId, Workload]) -> float:
            return sum(each for cgroup, each in tracker.active.items() if cgroup in workloads)

        # What paused work inflicts is not known apart, because it is not counted as best-effort.
        found = (
            (Disturbance.BEST_EFFORT, use_of(workload_index.best_effort) > _IDLE_SHARE * cpus),
            (Disturbance.PAUSED, use_of(workload_index.paused) > _IDLE_SHARE * cpus),
            (Disturbance.OUTSIDE, tracker.outside_cpus > _OUTSIDE_SHARE * cpus),
            (Disturbance.STEAL, (tracker.steal_cpus or 0.0) > _STEAL_SHARE * cpus),
            (Disturbance.NO_DATA, hold or not tracker.probe_alive),
        )
        self.present = tuple(disturbance for disturbance, present in found if present)
        self._last_ns.update(dict.fromkeys(self.present, now_ns))

    def disturbance(
        self, service: Service, spec: IndicatorSpec, tracker: IndicatorTracker
    ) -> Disturbance:
        """Return what disturbs the indicator *spec* of *service* now, or has just disturbed it."""
        present = self._node(service, spec, tracker)
        if present is not Disturbance.NONE:
            return present
        need = tracker.cpu_need.get(service.name)
        if need is None or need.oncpu < service.profile.idle_oncpu_ratio:
            return Disturbance.NO_LOAD
        if _is_throttled(service, spec, tracker):
            return Disturbance.THROTTLED
        if _misses_objective(service, tracker):
            return Disturbance.SUFFERS
        return self._without_cpu(service, spec, tracker)

    def _without_cpu(
        self, service: Service, spec: IndicatorSpec, tracker: IndicatorTracker
    ) -> Disturbance:
        """Return what best-effort work does to the service with hardly any CPU."""
        if spec.name in OF_DISKS:
            share = tracker.counted.disk_share(service, spec)
            if share is not None and share > _INFLICTED_SHARE:
                return Disturbance.USES_DISKS
        if spec.name in OF_MEMORY and not _has_enough(service, spec, tracker):
            known = [
                each for each in tracker.samples.by_cgroup.values() if each.memory_bytes is not None
            ]
            used = sum(each.memory_bytes or 0 for each in known)
            held = sum(each.memory_bytes or 0 for each in known if each.cgroup in self._best_effort)
            # So much of the memory would justify a squeeze.
            if used and held >= service.profile.be_share_min * used:
                return Disturbance.HOLDS_MEMORY
        return Disturbance.NONE

    def _node(
        self, service: Service, spec: IndicatorSpec, tracker: IndicatorTracker
    ) -> Disturbance:
        settled_ns = self._now_ns - spec.window_ns - _SETTLE_NS
        for disturbance, at_ns in self._last_ns.items():
            if disturbance is Disturbance.BEST_EFFORT and _harmless(service, spec, tracker):
                continue
            if at_ns == self._now_ns:
                return disturbance
            if at_ns > settled_ns:
                return Disturbance.SETTLING
        return Disturbance.NONE


def _harmless(service: Service, spec: IndicatorSpec, tracker: IndicatorTracker) -> bool:
    """Whether best-effort work is known to do the service no harm although it runs."""
    if spec.name in OF_MEMORY:
        return _has_enough(service, spec, tracker)
    if spec.name is IndicatorName.DISK_WAIT:
        share = tracker.counted.disk_share(service, spec)
        return share is not None and share <= _INFLICTED_SHARE
    need = tracker.cpu_need.get(service.name)
    if spec.channel is not Channel.CPU or need is None:
        return False
    return tracker.blame.inflicted(service.name) <= _INFLICTED_SHARE * need.oncpu


def _has_enough(service: Service, spec: IndicatorSpec, tracker: IndicatorTracker) -> bool:
    """Whether the indicator of memory says that the service lacks none: nothing was taken."""
    found = tracker.indicator(service, spec)
    return found is not None and found.value is not None and found.value < spec.resolution


def _is_throttled(service: Service, spec: IndicatorSpec, tracker: IndicatorTracker) -> bool:
    readings = (tracker.reading(cgroup, spec) for cgroup in service.cgroups)
    return any(
        each is not None and (each.throttled_ns or 0) > _THROTTLED_SHARE * each.wanted_ns
        for each in readings
    )


def _misses_objective(service: Service, tracker: IndicatorTracker) -> bool:
    figure = service.figure
    own = None if figure is None else tracker.indicator(service, figure)
    if figure is None or own is None or own.status is not IndicatorStatus.FRESH:
        return False
    most = figure.sweet_point if figure.objective is None else figure.objective
    return own.value is not None and most is not None and own.value > most
