# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Indicators from the increase of a few counters of a workload, or of a shaped link.

CPI, misses per instruction and CPU time per packet are defined only for a workload that uses at
least 1 % of a CPU: below that they describe wake-ups and cold caches. Pressure, refaults and
network rate are always defined.

CPU time per packet stands for CPI on machines without hardware counters. Cache misses and a busy
memory bus make the same work take more CPU time, and the packets count the work. It is comparable
only at the same load, because a service handles several packets per wake-up when it is busy.

The delay of a packet in a shaped link follows from Little's law: mean backlog divided by the rate
of sending. This holds whether the queue is always or only sometimes full, and does not need the
speed of the link. It is equal for all services, and so is the loss.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.counters import traffic_bytes
from controller.core.indicators.measurement import STALE, Measured, service_indicator
from controller.core.indicators.windows import STRETCH, Delta, DeltaWindow
from controller.core.model import (
    CgroupId,
    Channel,
    IndicatorName,
    LinkSample,
    QosClass,
    Snapshot,
    Target,
    WorkloadSample,
)
from controller.core.settings import IndicatorSpec
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("COUNTED", "LINKED", "OF_DISKS", "OF_MEMORY", "CounterWindows", "LinkWindows")

# What a service that has too little memory shows, also where its own limit is the cause.
OF_MEMORY = frozenset({IndicatorName.PSI_MEMORY, IndicatorName.REFAULTS})
OF_DISKS = frozenset({IndicatorName.PSI_IO, IndicatorName.DISK_WAIT})

_LEAST_CPUS = 0.01
_INSTRUCTIONS = 1000

Evaluate = Callable[[Delta, float], Measured]


def _rate(delta: Delta, idle_cpus: float) -> Measured:
    return Measured(IndicatorStatus.FRESH, delta.counts[0] * 1e9 / delta.span_ns)


class _Source(NamedTuple):
    """The counters behind an indicator, and how its value follows from them.

    ``evaluate`` computes the value from the increase of the counters and the share of a CPU below
    which a service is idle. The first ``proof`` counters must have been above zero once, because
    in a virtual machine without a PMU a counter may exist and stay at zero. The window is stretched
    until the first counter grew by ``events`` times ``min_samples``; with less there is no value.
    Where ``events`` is 0, the window is stretched until the first counter grew by ``least``.
    ``is_pressure``: the counters are read with those of PSI. ``is_sched``: they need the sched
    probe. ``is_paced``: the first counter may be read less often than the others, so only readings
    in which it changed are compared. ``behind`` is the channel whose ``_BEHIND`` explains it.
    """

    counters: Callable[[WorkloadSample], tuple[int | None, ...]]
    evaluate: Evaluate = _rate
    proof: int = 0
    events: int = 0
    least: int = 0
    is_pressure: bool = False
    is_sched: bool = False
    is_paced: bool = False
    behind: Channel | None = None


def _per_instruction(delta: Delta, idle_cpus: float, scale: float) -> Measured:
    instructions, events, oncpu_ns, inflicted_ns = delta.counts
    cpus = oncpu_ns / delta.span_ns
    samples = instructions // _INSTRUCTIONS
    if cpus < max(_LEAST_CPUS, idle_cpus):
        return Measured(_hardly_runs(cpus, inflicted_ns, delta, idle_cpus), None, samples, cpus)
    if instructions == 0:
        # Perf counters are read once a second. One that did not change for three of them is dead.
        return STALE if delta.span_ns >= 3_000_000_000 else Measured(IndicatorStatus.FRESH)
    return Measured(IndicatorStatus.FRESH, scale * events / instructions, samples, cpus)


def _hardly_runs(cpus: float, inflicted_ns: int, delta: Delta, idle_cpus: float) -> IndicatorStatus:
    """Return FRESH for a workload that hardly ran because it had to wait, else IDLE."""
    wanted = cpus + inflicted_ns / delta.span_ns
    starved = wanted >= max(_LEAST_CPUS, idle_cpus)
    return IndicatorStatus.FRESH if starved else IndicatorStatus.IDLE


def _cpi(delta: Delta, idle_cpus: float) -> Measured:
    measured = _per_instruction(delta, idle_cpus, 1.0)
    # Instructions without a cycle: the counter of cycles is dead.
    return STALE if measured.value == 0 else measured


def _mpki(delta: Delta, idle_cpus: float) -> Measured:
    return _per_instruction(delta, idle_cpus, 1000.0)


def _per_packet(delta: Delta, idle_cpus: float) -> Measured:
    packets, oncpu_ns, inflicted_ns = delta.counts
    cpus = oncpu_ns / delta.span_ns
    rate = packets * 1e9 / delta.span_ns
    if cpus < max(_LEAST_CPUS, idle_cpus):
        return Measured(_hardly_runs(cpus, inflicted_ns, delta, idle_cpus), None, packets, rate)
    value = oncpu_ns / packets if packets else None
    return Measured(IndicatorStatus.FRESH, value, packets, rate)


def _computes_unasked(delta: Delta, window_ns: int) -> bool:
    """Whether a workload ran for the longest window with hardly a packet, for no lack of a CPU."""
    _, oncpu_ns, inflicted_ns = delta.counts
    return delta.span_ns >= STRETCH * window_ns and inflicted_ns <= oncpu_ns


def _pressure(delta: Delta, idle_cpus: float) -> Measured:
    # At most 1, because the kernel updates its total a little after the time is read.
    return Measured(IndicatorStatus.FRESH, min(1.0, delta.counts[0] / delta.span_ns))


def _per_request(delta: Delta, idle_cpus: float) -> Measured:
    requests, wait_ns = delta.counts
    rate = requests * 1e9 / delta.span_ns
    if not requests:
        return Measured(IndicatorStatus.IDLE, None, 0, rate)
    return Measured(IndicatorStatus.FRESH, wait_ns / requests, requests, rate)


def _total(field: str) -> Callable[[WorkloadSample], tuple[int | None, ...]]:
    get = attrgetter(field)
    return lambda sample: (get(sample),)


def _packets(sample: WorkloadSample) -> tuple[int | None, ...]:
    sent, received = sample.tx_packets, sample.rx_packets
    packets = None if sent is None or received is None else sent + received
    return packets, sample.oncpu_ns, sample.wait_inflicted_ns


def _by_instructions(events: str, evaluate: Evaluate) -> _Source:
    counters = attrgetter("instructions", events, "oncpu_ns", "wait_inflicted_ns")
    return _Source(counters, evaluate, proof=2, events=_INSTRUCTIONS, least=1, is_sched=True)


def _by_pressure(field: str, behind: Channel | None = None) -> _Source:
    return _Source(_total(field), _pressure, is_pressure=True, behind=behind)


COUNTED: Mapping[IndicatorName, _Source] = {
    IndicatorName.CPI: _by_instructions("cycles", _cpi),
    IndicatorName.LLC_MPKI: _by_instructions("llc_misses", _mpki),
    IndicatorName.CPU_PER_PACKET: _Source(
        _packets, _per_packet, proof=1, events=1, is_sched=True, is_paced=True
    ),
    IndicatorName.PSI_CPU: _by_pressure("psi_cpu_some_ns"),
    IndicatorName.PSI_MEMORY: _by_pressure("psi_memory_some_ns", Channel.MEMORY),
    IndicatorName.REFAULTS: _Source(_total("refaults"), is_pressure=True, behind=Channel.MEMORY),
    IndicatorName.PSI_IO: _by_pressure("psi_io_some_ns", Channel.IO),
    IndicatorName.DISK_WAIT: _Source(
        attrgetter("disk_requests", "disk_wait_ns"),
        _per_request,
        proof=1,
        events=1,
        behind=Channel.IO,
    ),
    # Some traffic counters are read only once a second, so a window without a reading is stretched.
    IndicatorName.NET_RATE: _Source(lambda sample: (traffic_bytes(sample),), least=1),
}
# What explains the indicators of a channel: hits of the service's own limits of memory, and its
# waits for disks with what best-effort inflicted of them.
_BEHIND: Mapping[Channel, _Source] = {
    Channel.MEMORY: _Source(_total("memory_limit_hits"), is_pressure=True),
    Channel.IO: _Source(attrgetter("disk_wait_ns", "disk_inflicted_ns")),
}

_Key = tuple[CgroupId, IndicatorName | Channel]


class _Watch(NamedTuple):
    """A window that an indicator of a service needs, and the source of its counters."""

    source: _Source
    spec: IndicatorSpec
    window: DeltaWindow


class CounterWindows:
    """Windows over the counters that the indicators of the services' profiles need.

    Their keys have the name of the indicator, or the channel of ``_BEHIND``.
    """

    def __init__(self) -> None:
        self._watches: dict[_Key, _Watch] = {}
        self._proven: set[_Key] = set()
        self._workload_index: WorkloadIndex | None = None

    def update(
        self,
        snapshot: Snapshot,
        samples: Mapping[CgroupId, WorkloadSample],
        workload_index: WorkloadIndex,
        alive: bool,
        rebase: bool,
    ) -> None:
        """Take one snapshot; *samples* are those of its workloads by cgroup.

        *alive*: the data of the sched probe is recent. *rebase* empties the windows, as is needed
        after a gap.
        """
        if workload_index is not self._workload_index:
            self._set_workloads(workload_index)
        proven = self._proven
        pressure_ns = snapshot.time_ns if snapshot.pressure_ns is None else snapshot.pressure_ns
        for key, (source, spec, window) in self._watches.items():
            time_ns = pressure_ns if source.is_pressure else snapshot.time_ns
            if rebase:
                window.clear()
            sample = samples.get(key[0])
            if sample is None or (source.is_sched and not alive):
                window.push(time_ns, (None,))
                continue
            counts = source.counters(sample)
            if source.is_paced and window.repeats(time_ns, counts, 2 * spec.window_ns):
                continue
            window.push(time_ns, counts)
            if window.alive and key not in proven and all(counts[: source.proof]):
                proven.add(key)

    def _set_workloads(self, workload_index: WorkloadIndex) -> None:
        self._workload_index = workload_index
        before, self._watches = self._watches, {}
        for service in workload_index.services.values():
            for spec in service.profile.indicators:
                if (source := COUNTED.get(spec.name)) is None:
                    continue
                wanted: dict[IndicatorName | Channel, _Source] = {spec.name: source}
                if source.behind is not None:
                    wanted[source.behind] = _BEHIND[source.behind]
                for key in ((cgroup, name) for cgroup in service.cgroups for name in wanted):
                    window = before[key].window if key in before else DeltaWindow()
                    window.keep_for(workload_index.longest_window_ns)
                    self._watches[key] = _Watch(wanted[key[1]], spec, window)
        self._proven &= self._watches.keys()

    def indicator(self, service: Service, spec: IndicatorSpec) -> Indicator | None:
        """Return the indicator of *service* that *spec* names.

        ``None`` if no present workload of the service has ever had the source.
        """
        proven = [cgroup for cgroup in service.cgroups if (cgroup, spec.name) in self._proven]
        if not proven:
            return None
        idle_cpus = service.profile.idle_oncpu_ratio
        return service_indicator(
            service.name,
            spec,
            ((cgroup, self._measure(cgroup, spec, idle_cpus)) for cgroup in proven),
        )

    def hits_own_limit(self, service: Service, spec: IndicatorSpec) -> bool:
        """Return whether *service* reached a limit of memory of its own in the window of *spec*.

        False where that is not known.
        """
        return any(hits > 0 for (hits,) in self._behind(Channel.MEMORY, service, spec))

    def disk_share(self, service: Service, spec: IndicatorSpec) -> float | None:
        """Return the part of *service*'s waits for disks that best-effort inflicted, 0..1.

        In the window of *spec*; ``None`` where it is not measured.
        """
        counts = list(self._behind(Channel.IO, service, spec))
        wait_ns = sum(waited for waited, _ in counts)
        if not counts or not wait_ns:
            return 0.0 if counts else None
        return min(1.0, sum(inflicted for _, inflicted in counts) / wait_ns)

    def _behind(
        self, channel: Channel, service: Service, spec: IndicatorSpec
    ) -> Iterable[tuple[int, ...]]:
        watches = (self._watches.get((cgroup, channel)) for cgroup in service.cgroups)
        for window in (each.window for each in watches if each is not None):
            delta = window.read(spec.window_ns) if window.alive else None
            if delta is not None:
                yield delta.counts

    def _measure(self, cgroup: CgroupId, spec: IndicatorSpec, idle_cpus: float) -> Measured:
        source, _, window = self._watches[cgroup, spec.name]
        if not window.alive:
            return STALE
        least = spec.min_samples * source.events
        delta = window.read(spec.window_ns, least or source.least)
        if delta is None:
            return Measured(IndicatorStatus.FRESH)
        measured = source.evaluate(delta, idle_cpus)
        if delta.counts[0] >= least:
            return measured
        if source.is_paced and _computes_unasked(delta, spec.window_ns):
            return measured._replace(status=IndicatorStatus.IDLE, value=None)
        return measured._replace(value=None)


LINKED = frozenset({IndicatorName.NET_BACKLOG, IndicatorName.NET_DROPS})


class LinkWindows:
    """Windows over the counters of the latency-sensitive tier, one per link and direction.

    The counters of a window are packets dropped, packets sent, bytes sent, and the integral of the
    backlog over time in byte-nanoseconds. They are kept apart, because one that shrinks shows that
    the tree was created again. ``known``: there has been a link.
    """

    def __init__(self) -> None:
        self.known = False
        self._last_ns = 0
        # The integral and the window of each link, by link and whether it is the ingress.
        self._sides: dict[tuple[Target, bool], tuple[int, DeltaWindow]] = {}

    def update(
        self, links: Iterable[LinkSample], time_ns: int, longest_ns: int, rebase: bool
    ) -> None:
        """Take the samples of one tick.

        Enough of them is kept for windows of *longest_ns*. *rebase* empties the windows, as is
        needed after a gap.
        """
        dt_ns, self._last_ns = time_ns - self._last_ns, time_ns
        before, self._sides = self._sides, {}
        for each in links:
            if each.tier != QosClass.LS:
                continue
            side = each.link, each.ingress
            backlog, window = before.get(side) or (0, DeltaWindow())
            backlog += each.backlog_bytes * dt_ns
            window.keep_for(longest_ns)
            if rebase:
                window.clear()
            window.push(time_ns, (each.drops, each.sent_packets, each.sent_bytes, backlog))
            self._sides[side] = backlog, window
            self.known = True

    def indicator(self, service: str, spec: IndicatorSpec) -> Indicator | None:
        """Return the value of *spec* (one of ``LINKED``) of the worst link and direction.

        ``None`` if there has never been a link.
        """
        if not self.known:
            return None
        sides = ((None, _measure_link(window, spec)) for _, window in self._sides.values())
        return service_indicator(service, spec, sides)


def _measure_link(window: DeltaWindow, spec: IndicatorSpec) -> Measured:
    delta = window.read(spec.window_ns, spec.min_samples)
    if delta is None:
        return Measured(IndicatorStatus.FRESH)
    drops, sent, sent_bytes, backlog = delta.counts
    offered = drops + sent
    if offered == 0 and backlog == 0:
        return Measured(IndicatorStatus.IDLE)
    if offered < spec.min_samples:
        return Measured(IndicatorStatus.FRESH, None, offered)
    if spec.name is IndicatorName.NET_DROPS:
        return Measured(IndicatorStatus.FRESH, drops / max(1, offered), offered)
    # Waits longer than the window cannot be measured, also when no packet was sent.
    span_ns = float(delta.span_ns)
    wait_ns = min(span_ns, backlog / sent_bytes) if sent_bytes else span_ns
    return Measured(IndicatorStatus.FRESH, wait_ns, offered)
