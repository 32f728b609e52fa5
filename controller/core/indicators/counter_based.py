# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Indicators from the increase of a few counters: CPI, pressure, refaults, disks, network and more.

CPI, misses per instruction and CPU time per packet are defined only for a workload that uses at
least 1 % of a CPU: below that they describe wake-ups and cold caches. Pressure, refaults and
network rate are always defined.

CPU time per packet stands for CPI on machines without hardware counters. Cache misses and a busy
memory bus make the same work take more CPU time, and the packets count the work. It is comparable
only at the same load, because a service handles several packets per wake-up when it is busy.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.counters import traffic_bytes
from controller.core.indicators.measurement import STALE, Measured, service_indicator
from controller.core.indicators.windows import STRETCH, Delta, DeltaWindow
from controller.core.model import CgroupId, IndicatorName, Snapshot, WorkloadSample
from controller.core.settings import IndicatorSpec
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("COUNTED", "OF_DISKS", "OF_MEMORY", "CounterWindows")

# What a service that has too little memory shows, also where its own limit is the cause.
OF_MEMORY = frozenset({IndicatorName.PSI_MEMORY, IndicatorName.REFAULTS})
OF_DISKS = frozenset({IndicatorName.PSI_IO, IndicatorName.DISK_WAIT})

_NO_SAMPLE = WorkloadSample(CgroupId("", 0))
_LEAST_CPUS = 0.01
# Perf counters are read once a second. A workload that ran for this long while its counter did not
# change has a dead counter.
_DEAD_NS = 3_000_000_000
_INSTRUCTIONS = 1000

Evaluate = Callable[[Delta, float], Measured]


class _Source(NamedTuple):
    """The counters behind an indicator, and how its value follows from them.

    ``evaluate`` computes the value from the increase of the counters and the share of a CPU below
    which a service is idle. The first ``proof`` counters must have been above zero once, because
    in a virtual machine without a PMU a counter may exist and stay at zero. The window is stretched
    until the first counter grew by ``events`` times ``min_samples``; with less there is no value.
    Where ``events`` is 0, the window is stretched until the first counter grew by ``least``.
    ``is_pressure``: the counters are read with those of PSI. ``is_sched``: they need the sched
    probe. ``is_paced``: the first counter may be read less often than the others, so only readings
    in which it changed are compared.
    """

    counters: Callable[[WorkloadSample], tuple[int | None, ...]]
    evaluate: Evaluate
    proof: int = 0
    events: int = 0
    least: int = 0
    is_pressure: bool = False
    is_sched: bool = False
    is_paced: bool = False


def _per_instruction(delta: Delta, idle_cpus: float, scale: float) -> Measured:
    instructions, events, oncpu_ns, inflicted_ns = delta.counts
    cpus = oncpu_ns / delta.span_ns
    samples = instructions // _INSTRUCTIONS
    if cpus < max(_LEAST_CPUS, idle_cpus):
        return Measured(_hardly_runs(cpus, inflicted_ns, delta, idle_cpus), None, samples, cpus)
    if instructions == 0:
        return STALE if delta.span_ns >= _DEAD_NS else Measured(IndicatorStatus.FRESH)
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


def _rate(delta: Delta, idle_cpus: float) -> Measured:
    return Measured(IndicatorStatus.FRESH, delta.counts[0] * 1e9 / delta.span_ns)


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


COUNTED: Mapping[IndicatorName, _Source] = {
    IndicatorName.CPI: _Source(
        attrgetter("instructions", "cycles", "oncpu_ns", "wait_inflicted_ns"),
        _cpi,
        proof=2,
        events=_INSTRUCTIONS,
        least=1,
        is_sched=True,
    ),
    IndicatorName.LLC_MPKI: _Source(
        attrgetter("instructions", "llc_misses", "oncpu_ns", "wait_inflicted_ns"),
        _mpki,
        proof=2,
        events=_INSTRUCTIONS,
        least=1,
        is_sched=True,
    ),
    IndicatorName.CPU_PER_PACKET: _Source(
        _packets, _per_packet, proof=1, events=1, is_sched=True, is_paced=True
    ),
    IndicatorName.PSI_CPU: _Source(_total("psi_cpu_some_ns"), _pressure, is_pressure=True),
    IndicatorName.PSI_MEMORY: _Source(_total("psi_memory_some_ns"), _pressure, is_pressure=True),
    IndicatorName.REFAULTS: _Source(_total("refaults"), _rate, is_pressure=True),
    IndicatorName.PSI_IO: _Source(_total("psi_io_some_ns"), _pressure, is_pressure=True),
    IndicatorName.DISK_WAIT: _Source(
        attrgetter("disk_requests", "disk_wait_ns"), _per_request, proof=1, events=1
    ),
    # Some traffic counters are read only once a second, so a window without a reading is stretched.
    IndicatorName.NET_RATE: _Source(lambda sample: (traffic_bytes(sample),), _rate, least=1),
}


class _Watch(NamedTuple):
    """A window that an indicator of a service needs, and the source of its counters."""

    key: tuple[CgroupId, IndicatorName]
    source: _Source
    spec: IndicatorSpec
    window: DeltaWindow


class CounterWindows:
    """Windows over the counters that the indicators of the services' profiles need."""

    __slots__ = ("_disks", "_hits", "_proven", "_watches", "_windows", "_workload_index")

    def __init__(self) -> None:
        self._windows: dict[tuple[CgroupId, IndicatorName], DeltaWindow] = {}
        # Over the hits of services' own limits of memory.
        self._hits: dict[CgroupId, DeltaWindow] = {}
        # Over the waits of services for disks, and what best-effort inflicted of them.
        self._disks: dict[CgroupId, DeltaWindow] = {}
        self._proven: set[tuple[CgroupId, IndicatorName]] = set()
        self._workload_index: WorkloadIndex | None = None
        self._watches: tuple[_Watch, ...] = ()

    def update(
        self,
        snapshot: Snapshot,
        samples: Mapping[CgroupId, WorkloadSample],
        workload_index: WorkloadIndex,
        alive: bool,
        rebase: bool,
    ) -> None:
        """Take a snapshot and its *samples* by cgroup.

        *alive*: the data of the sched probe is recent. *rebase* empties the windows, as is needed
        after a gap.
        """
        if workload_index is not self._workload_index:
            self._set_workloads(workload_index)
        proven = self._proven
        pressure_ns = snapshot.pressure_ns
        if pressure_ns is None:
            pressure_ns = snapshot.time_ns
        for key, source, spec, window in self._watches:
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
        for cgroup, hits in self._hits.items():
            if rebase:
                hits.clear()
            sample = samples.get(cgroup)
            hits.push(pressure_ns, (None if sample is None else sample.memory_limit_hits,))
        for cgroup, waits in self._disks.items():
            if rebase:
                waits.clear()
            sample = samples.get(cgroup, _NO_SAMPLE)
            waits.push(snapshot.time_ns, (sample.disk_wait_ns, sample.disk_inflicted_ns))

    def _set_workloads(self, workload_index: WorkloadIndex) -> None:
        self._workload_index = workload_index
        windows: dict[tuple[CgroupId, IndicatorName], DeltaWindow] = {}
        hits: dict[CgroupId, DeltaWindow] = {}
        disks: dict[CgroupId, DeltaWindow] = {}
        watches: list[_Watch] = []
        for service in workload_index.services.values():
            for spec in service.profile.indicators:
                source = COUNTED.get(spec.name)
                if source is None:
                    continue
                for cgroup in service.cgroups:
                    key = (cgroup, spec.name)
                    window = windows[key] = self._windows.get(key) or DeltaWindow()
                    window.keep_for(spec.window_ns)
                    watches.append(_Watch(key, source, spec, window))
                    if spec.name in OF_MEMORY:
                        own = hits[cgroup] = self._hits.get(cgroup) or DeltaWindow()
                        own.keep_for(workload_index.longest_window_ns)
                    if spec.name in OF_DISKS:
                        waits = disks[cgroup] = self._disks.get(cgroup) or DeltaWindow()
                        waits.keep_for(workload_index.longest_window_ns)
        self._windows, self._watches = windows, tuple(watches)
        self._hits, self._disks = hits, disks
        self._proven &= windows.keys()

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
        windows = (self._hits.get(cgroup) for cgroup in service.cgroups)
        deltas = (each.read(spec.window_ns) for each in windows if each is not None and each.alive)
        return any(delta.counts[0] > 0 for delta in deltas if delta is not None)

    def disk_share(self, service: Service, spec: IndicatorSpec) -> float | None:
        """Return the part of *service*'s waits for disks that best-effort inflicted, 0..1.

        In the window of *spec*; ``None`` where it is not measured.
        """
        windows = (self._disks.get(cgroup) for cgroup in service.cgroups)
        deltas = [each.read(spec.window_ns) for each in windows if each is not None and each.alive]
        counts = [delta.counts for delta in deltas if delta is not None]
        wait_ns = sum(waited for waited, _ in counts)
        if not counts or not wait_ns:
            return 0.0 if counts else None
        return min(1.0, sum(inflicted for _, inflicted in counts) / wait_ns)

    def _measure(self, cgroup: CgroupId, spec: IndicatorSpec, idle_cpus: float) -> Measured:
        source = COUNTED[spec.name]
        window = self._windows.get((cgroup, spec.name))
        if window is None or not window.alive:
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
