# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Attribution of waits: averages per culprit and victim, best-effort's share per service.

The probe attributes most of the inflicted wait to a culprit. The rest is divided among the other
workloads and the work outside all workloads in proportion to their CPU use, which is the best
estimate of what occupied the CPU. While the agent sheds blame to save CPU, that is the whole wait.

The share counts against the inflicted wait, but at least against a quarter of all waiting: where a
service mostly waits for its own tasks, a small wait inflicted by others does not explain its
latency.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_not

from controller.core.decision import PartKind
from controller.core.indicators.counters import (
    NEGLIGIBLE_CPUS,
    SMOOTH_S,
    Averages,
    SampleDiff,
    increase,
)
from controller.core.limiters import smoothing
from controller.core.model import Blame, CgroupId, Workload, WorkloadSample
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("INFLICTED_MIN", "BlameTracker", "Who", "blame_deltas")

# A cgroup, or a kind that has no cgroup.
Who = CgroupId | PartKind
Gain = tuple[CgroupId, CgroupId | None, bool, int]
_Changed = Mapping[CgroupId, tuple[WorkloadSample, WorkloadSample]]
_Rates = defaultdict[str, list[tuple[Who, float]]]

# The time constant of who the culprits are, in seconds.
_CULPRIT_S = 30.0
# How often averages that can be dropped are searched. In much more than this, units would become
# smaller than floating-point numbers are.
_PRUNE_S = 10.0
# The part of all its waiting that a service must wait for others before their blame counts in
# full. Where its own tasks queue for the CPU, best-effort work that uses a part of that CPU causes
# about the same part of the waiting: 5 % of the CPU are a share of 20 % then.
INFLICTED_MIN = 0.25


@dataclass(slots=True)
class _WaitShare:
    """Waits of one service, in CPUs, averaged over 2 s.

    ``total`` is the inflicted wait and ``best_effort`` the part of it due to best-effort work.
    ``whole`` is all waiting, including that for the service's own tasks and its own quota.
    """

    total: float = 0.0
    best_effort: float = 0.0
    whole: float = 0.0

    def add(self, total: float, best_effort: float, whole: float, weight: float) -> None:
        """Average in the rates of one tick."""
        self.total += weight * (total - self.total)
        self.best_effort += weight * (best_effort - self.best_effort)
        self.whole += weight * (whole - self.whole)

    @property
    def ratio(self) -> float | None:
        """Best-effort's share, 0 to 1; ``None`` without an inflicted wait.

        It is the share of the inflicted wait, or of a quarter of all waiting if that is more.
        """
        if self.total < NEGLIGIBLE_CPUS:
            return None
        return min(1.0, self.best_effort / max(self.total, INFLICTED_MIN * self.whole))


class _WaitAverages:
    """The waits of each service by who caused them, in CPUs, averaged over *time_s*."""

    def __init__(self, time_s: float) -> None:
        self._time_s = time_s
        self._now_s = 0.0
        self.by_service: dict[str, Averages[Who]] = {}

    def update(
        self, rates: _Rates, services: Mapping[str, Service], now_s: float, dt_s: float
    ) -> None:
        """Take the *rates* of a tick of *dt_s* that ends at *now_s*."""
        self._now_s = now_s
        for gone in self.by_service.keys() - services.keys():
            del self.by_service[gone]
        for service, found in rates.items():
            if found and service in services:
                averages = self.by_service.get(service)
                if averages is None:
                    averages = self.by_service[service] = Averages(self._time_s)
                averages.add(found, now_s, dt_s)

    def of(self, service: str) -> dict[Who, float]:
        """Return the waits of *service* in CPUs."""
        averages = self.by_service.get(service)
        return {} if averages is None else averages.read(self._now_s)


class BlameTracker:
    """Averages of the blame counters.

    ``culprits`` is the wait that each best-effort workload inflicts on all services together, in
    CPUs, averaged over 30 s. ``parts`` has what makes a service wait besides best-effort work, over
    2 s: other services, system workloads, cgroups and processes outside all workloads, the host,
    and the service itself.
    """

    def __init__(self) -> None:
        self._last: tuple[Blame, ...] = ()
        self._shares: dict[str, _WaitShare] = {}
        self._now_s = 0.0
        self._by_victim = _WaitAverages(_CULPRIT_S)
        self._unknown: Averages[str] = Averages(_CULPRIT_S)
        # The services whose averages are still to be pruned in this round, which begins at a time.
        self._due: list[str] = []
        self._prune_s = self._pruned_s = 0.0
        self.culprits: dict[CgroupId, float] = {}
        self._use: Averages[CgroupId] = Averages(_CULPRIT_S)
        self.parts = _WaitAverages(SMOOTH_S)

    @property
    def use(self) -> dict[CgroupId, float]:
        """CPUs that each best-effort workload used, averaged over 30 s."""
        return self._use.read(self._now_s)

    def blame_for(self, service: str) -> dict[CgroupId, float]:
        """Return the wait that each best-effort workload inflicts on *service*, in CPUs.

        It is an average over 30 s. Wait without a name is divided by the use of CPU in that time.
        """
        blame = {
            who: cpus
            for who, cpus in self._by_victim.of(service).items()
            if isinstance(who, CgroupId)
        }
        unknown = self._unknown.read(self._now_s).get(service, 0.0)
        use = self.use if unknown > 0 else {}
        used = sum(use.values())
        for cgroup, cpus in use.items():
            blame[cgroup] = blame.get(cgroup, 0.0) + unknown * cpus / used
        return blame

    def share(self, service: str) -> float | None:
        """Return best-effort's share (0 to 1) of the wait of *service*; ``None``: no wait."""
        share = self._shares.get(service)
        return None if share is None else share.ratio

    def inflicted(self, service: str) -> float:
        """Return the wait that best-effort work inflicts on *service*, in CPUs."""
        share = self._shares.get(service)
        return 0.0 if share is None else share.best_effort

    def update(
        self,
        blame: tuple[Blame, ...],
        samples: SampleDiff,
        workload_index: WorkloadIndex,
        cpu_use: Mapping[CgroupId, float],
        outside_cpus: float,
        dt_ns: int,
    ) -> None:
        """Take one tick of *dt_ns*.

        *cpu_use* has the workloads that use any CPU, *outside_cpus* is the use of all other work,
        in CPUs.
        """
        before, self._last = self._last, blame
        if blame and not before:
            # The first list is only a base. Without a difference this tick is skipped, because
            # otherwise all of its wait would count as not attributed.
            return
        dt_s = dt_ns / 1e9
        self._now_s += dt_s
        services, best_effort = workload_index.services, workload_index.best_effort
        gains = blame_deltas(before, blame) if dt_ns > 0 else []
        changed = samples.changed if dt_ns > 0 else {}
        by_batch, by_others, named, inflicted = _named(gains, workload_index, dt_ns)
        total, whole = _waits(changed, workload_index, dt_ns)
        be_use = {cgroup: use for cgroup, use in cpu_use.items() if cgroup in best_effort}
        be_all = sum(be_use.values())
        everything = outside_cpus + sum(cpu_use.values())
        others = dict.fromkeys({**self._shares, **whole, **named}, everything)
        for cgroup, use in cpu_use.items():
            if (own := workload_index.sensitive.get(cgroup)) in others:
                others[own] -= use
        weight = smoothing(dt_s, SMOOTH_S)
        unknown: dict[str, float] = {}
        shares: dict[str, _WaitShare] = {}
        for service, others_use in others.items():
            wait = max(total.get(service, 0.0), named[service])
            be_part = min(1.0, be_all / others_use) if others_use > 0 else 0.0
            unknown[service] = (wait - named[service]) * be_part
            if (rest := wait - named[service] - unknown[service]) > 0:
                by_others[service].append((PartKind.UNKNOWN, rest))
            share = self._shares.get(service) or _WaitShare()
            by_be = sum(cpus for _, cpus in by_batch[service]) + unknown[service]
            share.add(wait, by_be, whole.get(service, 0.0), weight)
            if service in services and max(share.total, share.whole) >= NEGLIGIBLE_CPUS:
                shares[service] = share
        self._shares = shares
        self._prune()
        self._unknown.add(unknown.items(), self._now_s, dt_s)
        self._by_victim.update(by_batch, services, self._now_s, dt_s)
        self._use.add(be_use.items(), self._now_s, dt_s)
        _add_own(by_others, changed, workload_index, dt_ns)
        self.parts.update(by_others, services, self._now_s, dt_s)
        if self._now_s - self._pruned_s >= _PRUNE_S:
            self._pruned_s = self._now_s
            for averages in self.parts.by_service.values():
                averages.prune(self._now_s)
        unknown_be = sum(unknown.values())
        for cgroup, use in be_use.items() if unknown_be > 0 else ():
            inflicted[cgroup] += unknown_be * use / be_all
        self._average(inflicted, best_effort, smoothing(dt_s, _CULPRIT_S))

    def _prune(self) -> None:
        if not self._due and self._now_s >= self._prune_s:
            self._prune_s = self._now_s + _PRUNE_S
            self._due = list(self._by_victim.by_service)
            self._use.prune(self._now_s)
            self._unknown.prune(self._now_s)
        # One service in a tick: what nothing reads must not grow with the workloads that left.
        service = self._due.pop() if self._due else ""
        if service in self._by_victim.by_service:
            self._by_victim.by_service[service].prune(self._now_s)

    def _average(
        self, now: dict[CgroupId, float], present: Mapping[CgroupId, Workload], weight: float
    ) -> None:
        before, self.culprits = self.culprits, {}
        # A dict and not a set, because the order of summing must not depend on hash seeds.
        for cgroup in {**before, **now}:
            last = before.get(cgroup, 0.0)
            average = last + weight * (now.get(cgroup, 0.0) - last)
            if cgroup in present and average > NEGLIGIBLE_CPUS:
                self.culprits[cgroup] = average


def _named(
    gains: Sequence[Gain], workload_index: WorkloadIndex, dt_ns: int
) -> tuple[_Rates, _Rates, dict[str, float], dict[CgroupId, float]]:
    """Return the attributed waits of the services in CPUs.

    Those by best-effort work, those by others, all of each service, and all of each culprit.
    """
    by_batch, by_others = _Rates(list), _Rates(list)
    named: dict[str, float] = defaultdict(float)
    inflicted: dict[CgroupId, float] = defaultdict(float)
    sensitive, best_effort = workload_index.sensitive, workload_index.best_effort
    for victim, culprit, is_known, gain_ns in gains:
        if is_known and (service := sensitive.get(victim)) is not None:
            cpus = gain_ns / dt_ns
            named[service] += cpus
            if culprit is not None and culprit in best_effort:
                by_batch[service].append((culprit, cpus))
                inflicted[culprit] += cpus
            else:
                by_others[service].append((culprit or PartKind.OUTSIDE, cpus))
    return by_batch, by_others, named, inflicted


def _waits(
    changed: _Changed, workload_index: WorkloadIndex, dt_ns: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the inflicted waits and all waits of each service that may have waited, in CPUs."""
    inflicted: dict[str, float] = defaultdict(float)
    whole: dict[str, float] = defaultdict(float)
    for cgroup, (old, new) in changed.items():
        if (service := workload_index.sensitive.get(cgroup)) is not None:
            gain_ns = increase(old.wait_inflicted_ns, new.wait_inflicted_ns)
            whole_ns = max(gain_ns, increase(old.wait_total_ns, new.wait_total_ns))
            inflicted[service] += gain_ns / dt_ns
            whole[service] += whole_ns / dt_ns
    return inflicted, whole


def _add_own(rates: _Rates, changed: _Changed, workload_index: WorkloadIndex, dt_ns: int) -> None:
    """Add the waits of services for the host and for their own tasks."""
    for cgroup, service in workload_index.sensitive.items():  # there are few of them
        if (pair := changed.get(cgroup)) is not None:
            old, new = pair
            host = increase(old.wait_host_ns, new.wait_host_ns)
            whole = increase(old.wait_total_ns, new.wait_total_ns)
            others = increase(old.wait_inflicted_ns, new.wait_inflicted_ns) + host
            own = whole - others - increase(old.throttled_ns, new.throttled_ns)
            rates[service] += ((PartKind.HOST, host / dt_ns), (PartKind.SELF, max(0, own) / dt_ns))


def blame_deltas(before: tuple[Blame, ...], after: tuple[Blame, ...]) -> list[Gain]:
    """Return (victim, culprit, known, increase in ns) of the pairs whose counter grew.

    A pair that is new in the list starts at zero; an empty *before* is no base, so the result is
    empty. In most ticks both lists have the same pairs in the same order, and most pairs are the
    same objects. Then no pair is looked up by name, which matters because there may be tens of
    thousands.
    """
    if not before:
        return []
    gains: list[Gain] = []
    pairs = zip(before, after, strict=False)
    for old, new in compress(pairs, map(is_not, before, after)):
        if old == new:
            continue
        victim, culprit, known, wait_ns = new
        if old[0] != victim or old[1] != culprit or old[2] is not known:
            return _deltas_by_name(before, after)
        if wait_ns > old[3]:
            gains.append((victim, culprit, known, wait_ns - old[3]))
    if len(after) < len(before):
        return _deltas_by_name(before, after)
    gains.extend(after[len(before) :])
    return gains


def _deltas_by_name(before: tuple[Blame, ...], after: tuple[Blame, ...]) -> list[Gain]:
    counters = {pair[:3]: pair.wait_ns for pair in before}
    gains = []
    for pair in after:
        gain_ns = pair.wait_ns - counters.get(pair[:3], 0)
        if gain_ns > 0:
            gains.append((pair.victim, pair.culprit, pair.known, gain_ns))
    return gains
