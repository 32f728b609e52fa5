# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Attribution of inflicted wait: averages per culprit and victim, best-effort's share per service.

The probe attributes most of the inflicted wait to a culprit. The rest is divided among the other
workloads and the work outside all workloads in proportion to their CPU use, which is the best
estimate of what occupied the CPU. While the agent sheds blame to save CPU, that is the whole wait.

The share counts against the inflicted wait, but at least against a quarter of all waiting: where a
service mostly waits for its own tasks, a small wait inflicted by others does not explain its
latency.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import compress
from operator import is_not

from controller.core.indicators.counters import (
    CULPRIT_S,
    NEGLIGIBLE_CPUS,
    Averages,
    SampleDiff,
    smoothing,
)
from controller.core.indicators.wait_parts import WaitParts
from controller.core.model import Blame, CgroupId, Workload
from controller.core.workload_index import WorkloadIndex

__all__ = ("INFLICTED_MIN", "BlameTracker", "WaitShare", "blame_deltas")

Gain = tuple[CgroupId, CgroupId | None, bool, int]

_SHARE_S = 2.0
# How often averages that can be dropped are searched. In much more than this, units would become
# smaller than floating-point numbers are.
_PRUNE_S = 10.0
# The part of all its waiting that a service must wait for others before their blame counts in
# full. Where its own tasks queue for the CPU, best-effort work that uses a part of that CPU causes
# about the same part of the waiting: 5 % of the CPU are a share of 20 % then.
INFLICTED_MIN = 0.25


class WaitShare:
    """Smoothed waits of one service, in CPUs.

    ``total`` is the inflicted wait and ``best_effort`` the part of it due to best-effort work.
    ``whole`` is all waiting, including that for the service's own tasks and its own quota.
    """

    __slots__ = ("best_effort", "total", "whole")

    def __init__(self) -> None:
        self.total = 0.0
        self.best_effort = 0.0
        self.whole = 0.0

    def add(self, total: float, best_effort: float, whole: float, weight: float) -> None:
        """Average in the rates of one tick."""
        self.total += weight * (total - self.total)
        self.best_effort += weight * (best_effort - self.best_effort)
        self.whole += weight * (whole - self.whole)

    @property
    def faded(self) -> bool:
        """Whether the averages are so small that they can be dropped."""
        return max(self.total, self.whole) < NEGLIGIBLE_CPUS

    @property
    def ratio(self) -> float | None:
        """Best-effort's share, 0 to 1; ``None`` without an inflicted wait.

        It is the share of the inflicted wait, or of a quarter of all waiting if that is more.
        """
        if self.total < NEGLIGIBLE_CPUS:
            return None
        return min(1.0, self.best_effort / max(self.total, INFLICTED_MIN * self.whole))


class BlameTracker:
    """Averages of the blame counters.

    ``culprits`` is the wait that each best-effort workload inflicts on all services together, in
    CPUs, averaged over 30 s; ``blame_for`` is that of one service, and ``parts`` what others
    inflict on it.
    """

    __slots__ = (
        "_by_victim",
        "_due",
        "_last",
        "_now_s",
        "_prune_s",
        "_shares",
        "_unknown",
        "_use",
        "culprits",
        "parts",
    )

    def __init__(self) -> None:
        self._last: tuple[Blame, ...] = ()
        self._shares: dict[str, WaitShare] = {}
        self._now_s = 0.0
        self._by_victim: dict[str, Averages[CgroupId]] = {}
        # The services whose averages are still to be pruned in this round, which begins at a time.
        self._due: list[str] = []
        self._prune_s = 0.0
        self._unknown: Averages[str] = Averages()
        self._use: Averages[CgroupId] = Averages()
        self.culprits: dict[CgroupId, float] = {}
        self.parts = WaitParts(_SHARE_S)

    @property
    def use(self) -> dict[CgroupId, float]:
        """CPUs that each best-effort workload used, averaged over 30 s."""
        return self._use.read(self._now_s)

    def blame_for(self, service: str) -> dict[CgroupId, float]:
        """Return the wait that each best-effort workload inflicts on *service*, in CPUs.

        It is an average over 30 s. Wait without a name is divided by the use of CPU in that time.
        """
        averages = self._by_victim.get(service)
        blame = {} if averages is None else averages.read(self._now_s)
        unknown = self._unknown.read(self._now_s).get(service, 0.0)
        use = self._use.read(self._now_s) if unknown > 0 else {}
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
        based = bool(self._last) or not blame
        gains = blame_deltas(self._last, blame) if dt_ns > 0 else ()
        self._last = blame
        if not based:
            # The first list is only a base. Without a difference this tick is skipped, because
            # otherwise all of its wait would count as not attributed.
            return
        self._now_s += dt_ns / 1e9
        weight = smoothing(dt_ns / 1e9, CULPRIT_S)
        named, named_be, inflicted_by = _named(gains, workload_index, dt_ns)
        self._add_named(gains, workload_index, dt_ns, weight)
        total, whole = _waits(samples, workload_index, dt_ns)
        best_effort = workload_index.best_effort
        be_use = {cgroup: use for cgroup, use in cpu_use.items() if cgroup in best_effort}
        be_all = sum(be_use.values())
        everything = outside_cpus + sum(cpu_use.values())
        others = dict.fromkeys({**self._shares, **whole, **named}, everything)
        for cgroup, use in cpu_use.items():
            if (own := workload_index.sensitive.get(cgroup)) in others:
                others[own] -= use
        share_weight = smoothing(dt_ns / 1e9, _SHARE_S)
        unknown_be = 0.0
        unnamed: dict[str, float] = {}
        shares: dict[str, WaitShare] = {}
        for service, others_use in others.items():
            wait = max(total.get(service, 0.0), named.get(service, 0.0))
            be_part = min(1.0, be_all / others_use) if others_use > 0 else 0.0
            unknown = (wait - named.get(service, 0.0)) * be_part
            unknown_be += unknown
            unnamed[service] = wait - named.get(service, 0.0) - unknown
            share = self._shares.get(service) or WaitShare()
            by_be = named_be.get(service, 0.0) + unknown
            share.add(wait, by_be, whole.get(service, 0.0), share_weight)
            if unknown > 0:
                self._unknown.add([(service, unknown)], self._now_s, weight)
            if service in workload_index.services and not share.faded:
                shares[service] = share
        self._shares = shares
        if unknown_be > 0 and be_all > 0:
            for cgroup, use in be_use.items():
                inflicted_by[cgroup] = inflicted_by.get(cgroup, 0.0) + unknown_be * use / be_all
        self._average(inflicted_by, best_effort, weight)
        self._use.add(be_use.items(), self._now_s, weight)
        now_s = self._now_s
        self.parts.update(gains, samples, unnamed, workload_index, now_s, dt_ns, share_weight)

    def _add_named(
        self, gains: Iterable[Gain], workload_index: WorkloadIndex, dt_ns: int, weight: float
    ) -> None:
        sensitive, best_effort = workload_index.sensitive, workload_index.best_effort
        by_victim = self._by_victim
        if not self._due and self._now_s >= self._prune_s:
            self._prune_s = self._now_s + _PRUNE_S
            self._due = list(by_victim)
            self._use.prune(self._now_s)
            self._unknown.prune(self._now_s)
        for service in by_victim.keys() - workload_index.services.keys():
            del by_victim[service]
        # One service in a tick: what nothing reads must not grow with the workloads that left.
        if self._due and (due := self._due.pop()) in by_victim:
            by_victim[due].prune(self._now_s)
        rates: dict[str, list[tuple[CgroupId, float]]] = defaultdict(list)
        for victim, culprit, is_known, gain_ns in gains:
            if is_known and victim in sensitive and culprit in best_effort and culprit is not None:
                rates[sensitive[victim]].append((culprit, gain_ns / dt_ns))
        for service, by_culprit in rates.items():
            averages = by_victim.get(service)
            if averages is None:
                averages = by_victim[service] = Averages()
            averages.add(by_culprit, self._now_s, weight)

    def _average(
        self, now: Mapping[CgroupId, float], best_effort: Mapping[CgroupId, Workload], weight: float
    ) -> None:
        averages: dict[CgroupId, float] = {}
        # A dict and not a set, because the order of summing must not depend on hash seeds.
        for cgroup in {**self.culprits, **now}:
            if cgroup in best_effort:
                before = self.culprits.get(cgroup, 0.0)
                average = before + weight * (now.get(cgroup, 0.0) - before)
                if average > NEGLIGIBLE_CPUS:
                    averages[cgroup] = average
        self.culprits = averages


def _named(
    gains: Iterable[Gain], workload_index: WorkloadIndex, dt_ns: int
) -> tuple[dict[str, float], dict[str, float], dict[CgroupId, float]]:
    """Return the attributed waits in CPUs: by service, best-effort's part of it, by culprit."""
    named: dict[str, float] = defaultdict(float)
    named_be: dict[str, float] = defaultdict(float)
    inflicted_by: dict[CgroupId, float] = defaultdict(float)
    for victim, culprit, is_known, gain_ns in gains:
        if not is_known or victim not in workload_index.sensitive:
            continue
        service, cpus = workload_index.sensitive[victim], gain_ns / dt_ns
        named[service] += cpus
        if culprit in workload_index.best_effort and culprit is not None:
            named_be[service] += cpus
            inflicted_by[culprit] += cpus
    return named, named_be, inflicted_by


def _waits(
    samples: SampleDiff, workload_index: WorkloadIndex, dt_ns: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the inflicted waits and all waits of each service that waited, in CPUs."""
    inflicted: dict[str, float] = {}
    whole: dict[str, float] = {}
    for cgroup, (old, new) in samples.changed.items():
        service = workload_index.sensitive.get(cgroup)
        old_ns, new_ns = old.wait_inflicted_ns, new.wait_inflicted_ns
        if service is None or old_ns is None or new_ns is None or dt_ns <= 0:
            continue
        gain_ns = max(0, new_ns - old_ns)
        whole_ns = max(0, (new.wait_total_ns or new_ns) - (old.wait_total_ns or old_ns))
        inflicted[service] = inflicted.get(service, 0.0) + gain_ns / dt_ns
        whole[service] = whole.get(service, 0.0) + whole_ns / dt_ns
    return inflicted, whole


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
