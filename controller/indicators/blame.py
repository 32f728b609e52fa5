# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who made whom wait: an average per culprit, and best-effort's share of a service's wait.

The probe attributes most of the inflicted wait by name. What it cannot attribute is shared
among the other workloads by their CPU use: whoever ran most most probably stood in the way.

A service that waits for its own tasks hurts itself, and what others add to that explains nothing.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import compress
from operator import is_not

from controller.indicators.rates import smoothing
from controller.model import Blame, CgroupId, Workload, WorkloadSample

__all__ = ("BlameBook", "WaitShare", "blame_gains")

Gain = tuple[CgroupId, CgroupId | None, bool, int]

_CULPRIT_S = 30.0
_SHARE_S = 2.0
_FORGET_CPUS = 1e-6
# The part of all its waiting that a service must wait for others before these are to blame in
# full. Where its own tasks queue for the CPU, best-effort work that holds a part of that CPU
# causes about the same part of the waiting: 5 % are a share of 20 % then.
_FOR_OTHERS = 0.25


class WaitShare:
    """Smoothed waits of one service in CPUs: inflicted, best-effort's part of that, and all.

    ``whole`` is with the waits for its own tasks and for its own quota.
    """

    __slots__ = ("best_effort", "total", "whole")

    def __init__(self) -> None:
        self.total = 0.0
        self.best_effort = 0.0
        self.whole = 0.0

    def add(self, total: float, best_effort: float, whole: float, weight: float) -> None:
        """Fold in the rates of one tick."""
        self.total += weight * (total - self.total)
        self.best_effort += weight * (best_effort - self.best_effort)
        self.whole += weight * (whole - self.whole)

    @property
    def ratio(self) -> float | None:
        """Best-effort's share; ``None`` when there was no wait to share.

        Of the inflicted wait, or of a quarter of all waiting if that is more.
        """
        if self.total < _FORGET_CPUS:
            return None
        return min(1.0, self.best_effort / max(self.total, _FOR_OTHERS * self.whole))


class BlameBook:
    """Follows the blame counters. ``culprits`` is the 30 s average in CPUs of inflicted wait."""

    __slots__ = ("_last", "_waits", "culprits", "shares")

    def __init__(self) -> None:
        self._last: tuple[Blame, ...] = ()
        self._waits: dict[CgroupId, tuple[int, int]] = {}
        self.culprits: dict[CgroupId, float] = {}
        self.shares: dict[str, WaitShare] = {}

    def update(
        self,
        blame: tuple[Blame, ...],
        samples: Mapping[CgroupId, WorkloadSample],
        services: Mapping[CgroupId, str],
        best_effort: Mapping[CgroupId, Workload],
        cpu_use: Mapping[CgroupId, float],
        dt_ns: int,
    ) -> None:
        """Take one tick; *services* maps the latency-sensitive cgroups to their service."""
        total, whole = self._waits_now(samples, services, dt_ns)
        based = bool(self._last) or not blame
        gains = blame_gains(self._last, blame) if dt_ns > 0 else ()
        self._last = blame
        if not based:
            # The first list: it says nothing of this tick, so this tick must not be read as
            # one in which nobody was named.
            return
        known_ns: dict[str, int] = defaultdict(int)
        known_be_ns: dict[str, int] = defaultdict(int)
        by_culprit_ns: dict[CgroupId, int] = defaultdict(int)
        for victim, culprit, is_known, gain_ns in gains:
            if not is_known or victim not in services:
                continue
            service = services[victim]
            known_ns[service] += gain_ns
            if culprit in best_effort and culprit is not None:
                known_be_ns[service] += gain_ns
                by_culprit_ns[culprit] += gain_ns
        inflicted_by = {culprit: ns / dt_ns for culprit, ns in by_culprit_ns.items()}

        own_use: dict[str, float] = {}
        for cgroup, service in services.items():
            own_use[service] = own_use.get(service, 0.0) + cpu_use.get(cgroup, 0.0)
        be_use = {cgroup: cpu_use[cgroup] for cgroup in best_effort if cgroup in cpu_use}
        be_all = sum(be_use.values())
        all_use = sum(cpu_use.values())
        weight = smoothing(dt_ns / 1e9, _SHARE_S)
        unknown_be = 0.0
        for service, own in own_use.items():
            named = known_ns[service] / dt_ns if dt_ns > 0 else 0.0
            named_be = known_be_ns[service] / dt_ns if dt_ns > 0 else 0.0
            wait = max(total.get(service, 0.0), named)
            others = all_use - own
            unknown = (wait - named) * (min(1.0, be_all / others) if others > 0 else 0.0)
            unknown_be += unknown
            share = self.shares.setdefault(service, WaitShare())
            share.add(wait, named_be + unknown, whole.get(service, 0.0), weight)
        for gone in [service for service in self.shares if service not in own_use]:
            del self.shares[gone]
        if unknown_be > 0 and be_all > 0:
            for cgroup, use in be_use.items():
                inflicted_by[cgroup] = inflicted_by.get(cgroup, 0.0) + unknown_be * use / be_all
        self._average(inflicted_by, best_effort, smoothing(dt_ns / 1e9, _CULPRIT_S))

    def _waits_now(
        self,
        samples: Mapping[CgroupId, WorkloadSample],
        services: Mapping[CgroupId, str],
        dt_ns: int,
    ) -> tuple[dict[str, float], dict[str, float]]:
        # The inflicted waits and all waits of each service, in CPUs.
        inflicted: dict[str, float] = {}
        whole: dict[str, float] = {}
        now: dict[CgroupId, tuple[int, int]] = {}
        for cgroup, service in services.items():
            sample = samples.get(cgroup)
            if sample is None or sample.wait_inflicted_ns is None:
                continue
            least_ns = sample.wait_inflicted_ns
            now[cgroup] = least_ns, sample.wait_total_ns or least_ns
            before = self._waits.get(cgroup, now[cgroup])
            for rates, new, old in zip((inflicted, whole), now[cgroup], before, strict=True):
                if new > old and dt_ns > 0:
                    rates[service] = rates.get(service, 0.0) + (new - old) / dt_ns
        self._waits = now
        return inflicted, whole

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


def blame_gains(before: tuple[Blame, ...], after: tuple[Blame, ...]) -> list[Gain]:
    """Return (victim, culprit, known, gain in ns) of the pairs that gained something.

    A pair that is new to a running list starts at zero; a first list only bases. Most ticks
    bring the same pairs in the same order, most of them the very same objects, and then nothing
    is looked up: there may be tens of thousands.
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
            return _gains_by_name(before, after)
        if wait_ns > old[3]:
            gains.append((victim, culprit, known, wait_ns - old[3]))
    if len(after) < len(before):
        return _gains_by_name(before, after)
    gains.extend(after[len(before) :])
    return gains


def _gains_by_name(before: tuple[Blame, ...], after: tuple[Blame, ...]) -> list[Gain]:
    counters = {pair[:3]: pair.wait_ns for pair in before}
    gains = []
    for pair in after:
        gain_ns = pair.wait_ns - counters.get(pair[:3], 0)
        if gain_ns > 0:
            gains.append((pair.victim, pair.culprit, pair.known, gain_ns))
    return gains
