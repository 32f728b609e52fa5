# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who made a service wait besides best-effort work: averages per service.

Other services, system workloads, cgroups and processes outside all workloads, the host, and the
service itself. Nothing is controlled by these figures; they name what hurts a service.
"""

from collections.abc import Iterable, Mapping

from controller.core.decision import PartKind
from controller.core.indicators.counters import Averages, SampleDiff, increase
from controller.core.model import CgroupId
from controller.core.workload_index import WorkloadIndex

__all__ = ("WaitParts", "Who")

# A cgroup, or a kind that has no cgroup.
Who = CgroupId | PartKind
_Gain = tuple[CgroupId, CgroupId | None, bool, int]


class WaitParts:
    """The waits of each service by who caused them, in CPUs, without best-effort work."""

    __slots__ = ("_by_service", "_now_s", "_pruned_s", "_time_s")

    def __init__(self, time_s: float) -> None:
        """*time_s* is the time constant of the averages, in seconds."""
        self._time_s = time_s
        self._by_service: dict[str, Averages[Who]] = {}
        self._now_s = self._pruned_s = 0.0

    def of(self, service: str) -> dict[Who, float]:
        """Return the waits of *service* in CPUs."""
        averages = self._by_service.get(service)
        return {} if averages is None else averages.read(self._now_s)

    def update(
        self,
        gains: Iterable[_Gain],
        samples: SampleDiff,
        unknown: Mapping[str, float],
        workload_index: WorkloadIndex,
        now_s: float,
        dt_ns: int,
        weight: float,
    ) -> None:
        """Take one tick; *unknown* is the wait (CPUs) of each service that has no name."""
        self._now_s = now_s
        services = workload_index.services
        for gone in self._by_service.keys() - services.keys():
            del self._by_service[gone]
        rates: dict[str, list[tuple[Who, float]]] = {}
        sensitive, best_effort = workload_index.sensitive, workload_index.best_effort
        for victim, culprit, is_known, gain_ns in gains:
            # Of thousands of pairs nearly all are with best-effort work.
            if not is_known or culprit in best_effort:
                continue
            if (service := sensitive.get(victim)) is not None:
                who = PartKind.OUTSIDE if culprit is None else culprit
                rates.setdefault(service, []).append((who, gain_ns / dt_ns))
        for service, cpus in unknown.items():
            if cpus > 0:
                rates.setdefault(service, []).append((PartKind.UNKNOWN, cpus))
        changed = samples.changed
        for cgroup, service in sensitive.items():  # there are few of them
            if dt_ns > 0 and (pair := changed.get(cgroup)) is not None:
                old, new = pair
                found = rates.setdefault(service, [])
                host = increase(old.wait_host_ns, new.wait_host_ns)
                whole = increase(old.wait_total_ns, new.wait_total_ns)
                others = increase(old.wait_inflicted_ns, new.wait_inflicted_ns) + host
                own = whole - others - increase(old.throttled_ns, new.throttled_ns)
                found.append((PartKind.HOST, host / dt_ns))
                found.append((PartKind.SELF, max(0, own) / dt_ns))
        for service, found in rates.items():
            averages = self._by_service.get(service)
            if averages is None:
                averages = self._by_service[service] = Averages(self._time_s)
            averages.add(found, now_s, weight)
        if now_s - self._pruned_s >= 10.0:  # a unit that decays for long has no room for digits
            self._pruned_s = now_s
            for averages in self._by_service.values():
                averages.prune(now_s)
