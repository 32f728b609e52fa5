# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Use of resources by best-effort and by all other workloads: the evidence of all channels but cpu.

No counter attributes an evicted cache line to its cause. What can be measured is the use of the
resource, so best-effort's share of the use is taken as evidence against it: of the memory bandwidth
(of the cache misses where that is not measured), of the bytes on the shaped links, of the memory,
of the bytes read from and written to disks where the waits for them are not measured.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
import math
from operator import attrgetter
from typing import NamedTuple

from controller.core.indicators.counters import traffic_bytes
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.limiters import SMOOTH_S, smoothing
from controller.core.model import (
    CgroupId,
    Channel,
    DiskRequests,
    QosClass,
    Snapshot,
    WorkloadSample,
)
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex

__all__ = ("WANT_DECAY_S", "DisksInUse", "LinkSide", "ResourceUsage", "UsageTracker")

# Time constants with which the want of a workload decays to its use. The second one applies while
# best-effort is squeezed, because then the use says little about the want. It is finite, because
# the workload may have become harmless.
WANT_DECAY_S = 30.0
_DECAY_SQUEEZED_S = 600.0
# A service uses a disk for so long after its last request was counted. The counts are read once a
# second, and a service that waits for a disk sends requests to it.
_RECENT_NS = 10 * NS_PER_SEC

# User, whether it is best-effort, count.
Count = tuple[Hashable, bool, int]
Counter = Callable[[WorkloadSample], int | None]


class LinkSide(NamedTuple):
    """One direction of a shaped link, by network namespace and ifindex."""

    scope: str
    ifindex: int
    ingress: bool


@dataclass(slots=True)
class UsageTracker:
    """Rates of use of one resource, from counters, or amounts with ``gauge``.

    ``rates`` is the use of each best-effort user, ``wants`` what it would use without a squeeze,
    ``others`` the sum over all other users, ``other_rates`` each of them: per second, or amounts
    for a gauge.
    """

    gauge: bool = False
    rates: dict[Hashable, float] = field(default_factory=dict)
    wants: dict[Hashable, float] = field(default_factory=dict)
    others: float = 0.0
    other_rates: dict[Hashable, float] = field(default_factory=dict)
    _known: bool = False
    _counts: dict[Hashable, int] = field(default_factory=dict)

    @property
    def wanted(self) -> float | None:
        """What all of best-effort would use without a squeeze; ``None``: not measured."""
        return sum(self.wants.values()) if self._known else None

    @property
    def share(self) -> float | None:
        """Best-effort's part of the use without a squeeze; ``None``: not measured, or no use."""
        wanted = self.wanted
        if wanted is None or wanted + self.others <= 0:
            return None
        return wanted / (wanted + self.others)

    @property
    def present_share(self) -> float | None:
        """Best-effort's part of the use as it is now; ``None``: not measured, or no use."""
        used = sum(self.rates.values())
        total = used + self.others
        return used / total if self._known and total > 0 else None

    def update(self, counts: Iterable[Count], dt_s: float, squeezed: bool) -> None:
        """Take the counts of all users, *dt_s* after the last ones."""
        before, self._counts = self._counts, {}
        weight = smoothing(dt_s, SMOOTH_S)
        keep = math.exp(-dt_s / (_DECAY_SQUEEZED_S if squeezed else WANT_DECAY_S))
        rates: dict[Hashable, float] = {}
        other_rates: dict[Hashable, float] = {}
        others = 0.0
        measured = False
        for user, best_effort, count in counts:
            self._counts[user] = count
            last = before.get(user)
            if self.gauge:
                now = float(count)
            elif last is None or count < last or dt_s <= 0:
                if best_effort and user in self.rates:
                    rates[user] = self.rates[user]
                continue
            else:
                now = (count - last) / dt_s
            measured = True
            if best_effort:
                rate = self.rates.get(user)
                rates[user] = now if rate is None else rate + weight * (now - rate)
            else:
                others += now
                rate = self.other_rates.get(user)
                other_rates[user] = now if rate is None else rate + weight * (now - rate)
        self.rates = rates
        if not measured:
            # The earlier result stays if these are the first counts of their users, and ends if
            # there are no counts at all.
            self._known = self._known and bool(self._counts)
            return
        self.others = self.others + weight * (others - self.others) if self._known else others
        self._known = True
        self.other_rates = other_rates
        wants: dict[Hashable, float] = {}
        for user, rate in rates.items():
            want = self.wants.get(user, rate)
            wants[user] = max(rate, rate + keep * (want - rate))
        self.wants = wants


@dataclass(slots=True)
class DisksInUse:
    """The disks (``MAJOR:MINOR``) that each workload used recently, stacked ones included.

    Only on the disks that a service uses can best-effort work make it wait.
    """

    _counts: dict[CgroupId, tuple[DiskRequests, ...]] = field(default_factory=dict)
    _used_ns: dict[CgroupId, dict[str, int]] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether the requests of any workload are counted."""
        return bool(self._counts)

    def update(self, samples: Iterable[WorkloadSample], now_ns: int) -> None:
        """Take the counts of all workloads."""
        before, self._counts = self._counts, {}
        used, self._used_ns = self._used_ns, {}
        for sample in samples:
            counts = sample.requests_by_disk
            if counts is None:
                continue
            cgroup = sample.cgroup
            self._counts[cgroup] = counts
            self._used_ns[cgroup] = used.get(cgroup, {})
            last = before.get(cgroup)
            if last is not None and last is not counts:
                known = dict(last)
                grown = (disk for disk, count in counts if count > known.get(disk, 0))
                self._used_ns[cgroup] |= dict.fromkeys(grown, now_ns)

    def of(self, cgroups: Iterable[CgroupId], now_ns: int) -> frozenset[str]:
        """Return the disks that *cgroups* used recently; empty: none, or they are not measured."""
        return frozenset(
            disk
            for cgroup in cgroups
            for disk, used_ns in self._used_ns.get(cgroup, {}).items()
            if now_ns - used_ns < _RECENT_NS
        )


# The counters that a channel's share is computed from, the best measure first.
_COUNTERS: Mapping[Channel, tuple[Counter, ...]] = {
    Channel.CACHE: (attrgetter("memory_bandwidth_bytes"), attrgetter("llc_misses")),
    Channel.NETWORK: (traffic_bytes,),
    Channel.MEMORY: (attrgetter("memory_bytes"),),
    Channel.IO: (attrgetter("io_bytes"),),
}


@dataclass(slots=True)
class ResourceUsage:
    """The use of the resources of all watched channels.

    ``links`` is the use of each direction of each shaped link, by the best-effort tier and by the
    other tiers. ``disks`` are those that services use. Of a channel that is not watched nothing is
    kept: the counts of an hour ago say nothing about the use of the last second.
    """

    links: dict[LinkSide, UsageTracker] = field(default_factory=dict)
    disks: DisksInUse = field(default_factory=DisksInUse)
    _trackers: dict[Channel, tuple[UsageTracker, ...]] = field(
        default_factory=lambda: {channel: _trackers_for(channel) for channel in _COUNTERS}
    )
    _last_ns: int | None = None
    _last_link_ns: int | None = None
    _updates: int = 0

    @property
    def bandwidth(self) -> UsageTracker:
        """Memory bandwidth in bytes per second."""
        return self._trackers[Channel.CACHE][0]

    def of(self, channel: Channel) -> UsageTracker:
        """Return the use by workload, by the best measure for *channel* that is available."""
        trackers = self._trackers[channel]
        return next((each for each in trackers if each.wanted is not None), trackers[0])

    def is_measured(self, channel: Channel) -> bool:
        """Return whether ``share`` rests on the resource, and not on CPU time in its place."""
        return channel is not Channel.CACHE or self.of(channel).share is not None

    def share(
        self, channel: Channel, tracker: IndicatorTracker, workload_index: WorkloadIndex
    ) -> float | None:
        """Return best-effort's part of the channel's resource; ``None``: unknown or unused."""
        if channel is Channel.NETWORK and self.links:
            # Only the direction with the most traffic counts.
            busiest = max(self.links.values(), key=lambda use: (use.wanted or 0.0) + use.others)
            return busiest.share
        share = self.of(channel).share
        if share is None and channel is Channel.CACHE:
            # Without a counter, CPU time stands for the use of the cache.
            total = tracker.outside_cpus + sum(tracker.use.cpus.values())
            batch = sum(tracker.use.cpus.get(cgroup, 0.0) for cgroup in workload_index.best_effort)
            share = batch / total if total > 0 else None
        return share

    def update(
        self, snapshot: Snapshot, workload_index: WorkloadIndex, squeezed: Mapping[Channel, bool]
    ) -> None:
        """Take a snapshot; *squeezed* is, by watched channel, whether it squeezes."""
        now_ns = snapshot.time_ns
        if Channel.NETWORK in squeezed:
            self._update_links(snapshot, squeezed[Channel.NETWORK])
        elif self.links:
            self.links = {}
        # Once a second, as there may be a thousand workloads. The first times in every tick, or the
        # use would be unknown for a second or two.
        if self._updates > 5 and now_ns - (self._last_ns or 0) < NS_PER_SEC:
            return
        self._updates += bool(squeezed)
        dt_s = 0.0 if self._last_ns is None else (now_ns - self._last_ns) / 1e9
        self._last_ns = now_ns
        if Channel.IO in squeezed:
            self.disks.update(snapshot.workloads, now_ns)
        elif self.disks.is_measured:
            self.disks = DisksInUse()
        for channel, counters in _COUNTERS.items():
            if channel not in squeezed:
                self._trackers[channel] = _trackers_for(channel)
                continue
            for counter, each in zip(counters, self._trackers[channel], strict=True):
                counts = _counts(snapshot.workloads, workload_index, counter)
                each.update(counts, dt_s, squeezed[channel])

    def _update_links(self, snapshot: Snapshot, squeezed: bool) -> None:
        last_ns, self._last_link_ns = self._last_link_ns, snapshot.time_ns
        dt_s = 0.0 if last_ns is None else (snapshot.time_ns - last_ns) / 1e9
        counts: dict[LinkSide, list[Count]] = {}
        for sample in snapshot.links:
            side = LinkSide(sample.link.scope, sample.link.id, sample.ingress)
            best_effort = sample.tier == QosClass.BE
            counts.setdefault(side, []).append((sample.tier, best_effort, sample.sent_bytes))
        self.links = {side: self.links.get(side) or UsageTracker() for side in counts}
        for side, use in self.links.items():
            use.update(counts[side], dt_s, squeezed)


def _trackers_for(channel: Channel) -> tuple[UsageTracker, ...]:
    return tuple(UsageTracker(gauge=channel is Channel.MEMORY) for _ in _COUNTERS[channel])


def _counts(
    samples: Iterable[WorkloadSample], workload_index: WorkloadIndex, counter: Counter
) -> list[tuple[CgroupId, bool, int]]:
    best_effort = workload_index.best_effort
    return [
        (sample.cgroup, sample.cgroup in best_effort, count)
        for sample in samples
        if (count := counter(sample)) is not None
    ]
