# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort's part in the use of a resource: the evidence of all channels but cpu.

Nobody measures whose cache line was evicted by whom. What can be measured is who uses the
resource, so best-effort is suspected by its share of the use: of the memory bandwidth, or of the
misses where that is unknown, of the shaped links' bytes, of the memory, of the disks' bytes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
import math
from operator import attrgetter
from typing import NamedTuple

from controller.core.indicators.counters import smoothing
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.model import CgroupId, Channel, QosClass, Snapshot, WorkloadSample
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex

__all__ = ("LinkSide", "ResourceUsage", "UsageTracker")

# Counters of a thousand workloads are looked at this often.
_PERIOD_NS = NS_PER_SEC
_FIRST_LOOKS = 5
_SMOOTH_S = 1.0
# What best-effort would use is forgotten with the first time constant; with the second while it
# is squeezed, because its use says little then. Not never: it may have turned harmless.
_FORGET_S = 30.0
_FORGET_SQUEEZED_S = 600.0

Count = tuple[Hashable, bool, int]
Counter = Callable[[WorkloadSample], int | None]


class LinkSide(NamedTuple):
    """One direction of a shaped link, by network namespace and ifindex."""

    scope: str
    ifindex: int
    ingress: bool


class UsageTracker:
    """Follows counters (or, with *gauge*, amounts) of best-effort's and everybody else's use.

    ``rates`` is what each best-effort user uses now, ``wants`` what it would use if it were not
    squeezed, ``others`` what all others use together: per second, or amounts for a gauge.
    """

    __slots__ = ("_counts", "_gauge", "_known", "others", "rates", "wants")

    def __init__(self, gauge: bool = False) -> None:
        self._gauge = gauge
        self._known = False
        self._counts: dict[Hashable, int] = {}
        self.rates: dict[Hashable, float] = {}
        self.wants: dict[Hashable, float] = {}
        self.others = 0.0

    @property
    def wanted(self) -> float | None:
        """What best-effort together would use if it were not squeezed; ``None``: not measured."""
        return sum(self.wants.values()) if self._known else None

    @property
    def share(self) -> float | None:
        """Best-effort's part of the use, unsqueezed; ``None`` where nobody uses or measures it."""
        wanted = self.wanted
        if wanted is None or wanted + self.others <= 0:
            return None
        return wanted / (wanted + self.others)

    def update(self, counts: Iterable[Count], dt_s: float, squeezed: bool) -> None:
        """Take (user, whether best-effort, count) of everybody, *dt_s* after the last time."""
        before, self._counts = self._counts, {}
        weight = smoothing(dt_s, _SMOOTH_S)
        keep = math.exp(-dt_s / (_FORGET_SQUEEZED_S if squeezed else _FORGET_S))
        rates: dict[Hashable, float] = {}
        others = 0.0
        measured = False
        for user, best_effort, count in counts:
            self._counts[user] = count
            last = before.get(user)
            if self._gauge:
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
        self.rates = rates
        if not measured:
            # Nothing at all, or only the first look: what was known before is not refuted.
            self._known = self._known and bool(self._counts)
            return
        self.others = self.others + weight * (others - self.others) if self._known else others
        self._known = True
        wants: dict[Hashable, float] = {}
        for user, rate in rates.items():
            want = self.wants.get(user, rate)
            wants[user] = max(rate, rate + keep * (want - rate))
        self.wants = wants


_llc_misses: Counter = attrgetter("llc_misses")
_bandwidth: Counter = attrgetter("memory_bandwidth_bytes")
_memory: Counter = attrgetter("memory_bytes")
_io: Counter = attrgetter("io_bytes")


def _traffic(sample: WorkloadSample) -> int | None:
    if sample.tx_bytes is None or sample.rx_bytes is None:
        return None
    return sample.tx_bytes + sample.rx_bytes


# What a channel's share is taken from, the best measure first.
_COUNTERS: Mapping[Channel, tuple[Counter, ...]] = {
    Channel.CACHE: (_bandwidth, _llc_misses),
    Channel.NETWORK: (_traffic,),
    Channel.MEMORY: (_memory,),
    Channel.IO: (_io,),
}


class ResourceUsage:
    """Who uses what, of the resources of the channels that are watched.

    ``links`` is each shaped link's use by best-effort's tier and by the others.
    """

    __slots__ = ("_last_link_ns", "_last_ns", "_looks", "_uses", "links")

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._looks = 0
        self._last_link_ns: int | None = None
        self._uses = {
            channel: tuple(UsageTracker(gauge=counter is _memory) for counter in counters)
            for channel, counters in _COUNTERS.items()
        }
        self.links: dict[LinkSide, UsageTracker] = {}

    @property
    def bandwidth(self) -> UsageTracker:
        """Memory bandwidth in bytes per second."""
        return self._uses[Channel.CACHE][0]

    def of(self, channel: Channel) -> UsageTracker:
        """Return the use by workload that tells most about *channel*."""
        uses = self._uses[channel]
        return next((use for use in uses if use.wanted is not None), uses[0])

    def share(
        self, channel: Channel, tracker: IndicatorTracker, workload_index: WorkloadIndex
    ) -> float | None:
        """Return best-effort's part of the channel's resource; ``None``: unknown or unused."""
        if channel is Channel.NETWORK and self.links:
            # The side that carries most is the one that is in the way.
            busiest = max(self.links.values(), key=lambda use: (use.wanted or 0.0) + use.others)
            return busiest.share
        share = self.of(channel).share
        if share is None and channel is Channel.CACHE:
            # No counter tells: whoever runs also uses the cache.
            everybody = sum(tracker.cpu_use.values())
            batch = sum(tracker.cpu_use.get(cgroup, 0.0) for cgroup in workload_index.best_effort)
            share = batch / everybody if everybody > 0 else None
        return share

    def update(
        self, snapshot: Snapshot, workload_index: WorkloadIndex, squeezed: Mapping[Channel, bool]
    ) -> None:
        """Take a snapshot; *squeezed* names the watched channels and says which one squeezes."""
        now_ns = snapshot.time_ns
        if Channel.NETWORK in squeezed:
            self._update_links(snapshot, squeezed[Channel.NETWORK])
        # At first in every tick, or nobody would be known to use anything for a second or two.
        if self._looks > _FIRST_LOOKS and now_ns - (self._last_ns or 0) < _PERIOD_NS:
            return
        self._looks += bool(squeezed)
        dt_s = 0.0 if self._last_ns is None else (now_ns - self._last_ns) / 1e9
        self._last_ns = now_ns
        for channel, hard in squeezed.items():
            for counter, use in zip(
                _COUNTERS.get(channel, ()), self._uses.get(channel, ()), strict=True
            ):
                use.update(_counts(snapshot.workloads, workload_index, counter), dt_s, hard)

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


def _counts(
    samples: Iterable[WorkloadSample], workload_index: WorkloadIndex, counter: Counter
) -> list[tuple[CgroupId, bool, int]]:
    best_effort = workload_index.best_effort
    return [
        (sample.cgroup, sample.cgroup in best_effort, count)
        for sample in samples
        if (count := counter(sample)) is not None
    ]
