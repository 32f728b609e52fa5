# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who made whom wait: an average per culprit, and best-effort's share of a service's wait.

The probe attributes most of the inflicted wait by name. What it cannot attribute is shared
among the other workloads by their CPU use: whoever ran most most probably stood in the way.
"""

from collections.abc import Iterable, Mapping

from controller.indicators.rates import smoothing
from controller.model import Blame, CgroupId, Workload, WorkloadSample

__all__ = ("BlameBook", "WaitShare")

_CULPRIT_S = 30.0
_SHARE_S = 2.0
_FORGET_CPUS = 1e-6


class WaitShare:
    """Smoothed inflicted wait of one service, all of it and best-effort's part, in CPUs."""

    __slots__ = ("best_effort", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.best_effort = 0.0

    def add(self, total: float, best_effort: float, weight: float) -> None:
        """Fold in the rates of one tick."""
        self.total += weight * (total - self.total)
        self.best_effort += weight * (best_effort - self.best_effort)

    @property
    def ratio(self) -> float | None:
        """Best-effort's share; ``None`` when there was no wait to share."""
        if self.total < _FORGET_CPUS:
            return None
        return min(1.0, self.best_effort / self.total)


class BlameBook:
    """Follows the blame counters. ``culprits`` is the 30 s average in CPUs of inflicted wait."""

    __slots__ = ("_counters", "_inflicted", "culprits", "shares")

    def __init__(self) -> None:
        self._counters: dict[tuple[CgroupId, CgroupId | None, bool], int] = {}
        self._inflicted: dict[CgroupId, int] = {}
        self.culprits: dict[CgroupId, float] = {}
        self.shares: dict[str, WaitShare] = {}

    def update(
        self,
        blame: Iterable[Blame],
        samples: Mapping[CgroupId, WorkloadSample],
        services: Mapping[CgroupId, str],
        best_effort: Mapping[CgroupId, Workload],
        cpu_use: Mapping[CgroupId, float],
        dt_ns: int,
    ) -> None:
        """Take one tick; *services* maps the latency-sensitive cgroups to their service."""
        total = self._inflicted_now(samples, services, dt_ns)
        named, named_by_service = self._named_now(blame, services, dt_ns)
        be_use = {cgroup: cpu_use.get(cgroup, 0.0) for cgroup in best_effort}
        be_all = sum(be_use.values())
        all_use = sum(cpu_use.values())

        inflicted_by: dict[CgroupId, float] = {}
        weight = smoothing(dt_ns / 1e9, _SHARE_S)
        own_use: dict[str, float] = {}
        for cgroup, service in services.items():
            own_use[service] = own_use.get(service, 0.0) + cpu_use.get(cgroup, 0.0)
        unknown_be = 0.0
        for service in own_use:
            known = named_by_service.get(service, {})
            known_all = sum(known.values())
            known_be = 0.0
            for culprit, rate in known.items():
                if culprit in best_effort and culprit is not None:
                    known_be += rate
                    inflicted_by[culprit] = inflicted_by.get(culprit, 0.0) + rate
            wait = max(total.get(service, 0.0), known_all)
            others = all_use - own_use[service]
            be_part = min(1.0, be_all / others) if others > 0 else 0.0
            unknown = (wait - known_all) * be_part
            unknown_be += unknown
            self.shares.setdefault(service, WaitShare()).add(wait, known_be + unknown, weight)
        if unknown_be > 0 and be_all > 0:
            for cgroup, use in be_use.items():
                inflicted_by[cgroup] = inflicted_by.get(cgroup, 0.0) + unknown_be * use / be_all
        self._counters = named
        self._average(inflicted_by, best_effort, smoothing(dt_ns / 1e9, _CULPRIT_S))
        for gone in self.shares.keys() - own_use.keys():
            del self.shares[gone]

    def _inflicted_now(
        self,
        samples: Mapping[CgroupId, WorkloadSample],
        services: Mapping[CgroupId, str],
        dt_ns: int,
    ) -> dict[str, float]:
        rates: dict[str, float] = {}
        now: dict[CgroupId, int] = {}
        for cgroup, service in services.items():
            sample = samples.get(cgroup)
            if sample is None or sample.wait_inflicted_ns is None:
                continue
            now[cgroup] = sample.wait_inflicted_ns
            gained = sample.wait_inflicted_ns - self._inflicted.get(cgroup, now[cgroup])
            if gained > 0 and dt_ns > 0:
                rates[service] = rates.get(service, 0.0) + gained / dt_ns
        self._inflicted = now
        return rates

    def _named_now(
        self, blame: Iterable[Blame], services: Mapping[CgroupId, str], dt_ns: int
    ) -> tuple[
        dict[tuple[CgroupId, CgroupId | None, bool], int],
        dict[str, dict[CgroupId | None, float]],
    ]:
        counters: dict[tuple[CgroupId, CgroupId | None, bool], int] = {}
        by_service: dict[str, dict[CgroupId | None, float]] = {}
        before = self._counters
        for victim, culprit, known, wait_ns in blame:
            key = (victim, culprit, known)
            counters[key] = wait_ns
            # A pair that is new to a running book starts at zero; a new book only bases.
            last = before.get(key, 0) if before else wait_ns
            if not known or wait_ns <= last or dt_ns <= 0:
                continue
            service = services.get(victim)
            if service is not None:
                rates = by_service.setdefault(service, {})
                rates[culprit] = rates.get(culprit, 0.0) + (wait_ns - last) / dt_ns
        return counters, by_service

    def _average(
        self, now: Mapping[CgroupId, float], best_effort: Mapping[CgroupId, Workload], weight: float
    ) -> None:
        averages: dict[CgroupId, float] = {}
        # A dict and not a set: the order of summing must not depend on hash seeds.
        for cgroup in {**self.culprits, **now}:
            if cgroup in best_effort:
                before = self.culprits.get(cgroup, 0.0)
                average = before + weight * (now.get(cgroup, 0.0) - before)
                if average > _FORGET_CPUS:
                    averages[cgroup] = average
        self.culprits = averages
