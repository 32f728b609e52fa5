# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Indicators of a workload that follow from what a few of its counters gained.

CPI and misses per instruction exist only for who runs: below 1 % of a CPU they are those of
wake-ups and of cold caches. Pressure and traffic mean something for everybody.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.measurement import STALE, Measured, service_indicator
from controller.core.indicators.windows import Delta, DeltaWindow
from controller.core.model import CgroupId, IndicatorName, Snapshot, WorkloadSample
from controller.core.settings import IndicatorSpec
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("COUNTED", "CounterWindows")

_LEAST_CPUS = 0.01
# Perf counters are brought up to date once a second: who ran for so long and counted nothing has
# a counter that is dead.
_DEAD_NS = 3_000_000_000
_INSTRUCTIONS = 1000

Judge = Callable[[Delta, float], Measured]


class _Source(NamedTuple):
    """The counters behind an indicator and what becomes of their gain.

    ``proof`` is how many of them must have counted something to be believed: a counter of a
    virtual machine without a PMU may be there and stay at zero. ``judge`` gets the gain and
    the share of a CPU below which a service is idle. The window is stretched until the first
    counter gained ``events`` times ``min_samples``, without which there is no value; where
    nothing is counted by events, until it gained ``least``.
    """

    counters: Callable[[WorkloadSample], tuple[int | None, ...]]
    judge: Judge
    proof: int = 0
    events: int = 0
    least: int = 0
    is_pressure: bool = False
    is_sched: bool = False


def _per_instruction(gain: Delta, idle_cpus: float, scale: float) -> Measured:
    instructions, events, oncpu_ns, inflicted_ns = gain.counts
    cpus = oncpu_ns / gain.span_ns
    least = max(_LEAST_CPUS, idle_cpus)
    samples = instructions // _INSTRUCTIONS
    if cpus < least:
        # It hardly ran. If that is because it had to wait, it is not idle, but has no CPI either.
        starved = cpus + inflicted_ns / gain.span_ns >= least
        status = IndicatorStatus.FRESH if starved else IndicatorStatus.IDLE
        return Measured(status, None, samples, cpus)
    if instructions == 0:
        return STALE if gain.span_ns >= _DEAD_NS else Measured(IndicatorStatus.FRESH)
    return Measured(IndicatorStatus.FRESH, scale * events / instructions, samples, cpus)


def _cpi(gain: Delta, idle_cpus: float) -> Measured:
    measured = _per_instruction(gain, idle_cpus, 1.0)
    # Nor is there an instruction without a cycle.
    return STALE if measured.value == 0 else measured


def _mpki(gain: Delta, idle_cpus: float) -> Measured:
    return _per_instruction(gain, idle_cpus, 1000.0)


def _pressure(gain: Delta, idle_cpus: float) -> Measured:
    # The kernel brings its total up to date a little later than we note the time.
    return Measured(IndicatorStatus.FRESH, min(1.0, gain.counts[0] / gain.span_ns))


def _rate(gain: Delta, idle_cpus: float) -> Measured:
    return Measured(IndicatorStatus.FRESH, gain.counts[0] * 1e9 / gain.span_ns)


def _total(field: str) -> Callable[[WorkloadSample], tuple[int | None, ...]]:
    get = attrgetter(field)
    return lambda sample: (get(sample),)


def _traffic(sample: WorkloadSample) -> tuple[int | None, ...]:
    sent, received = sample.tx_bytes, sample.rx_bytes
    return (None if sent is None or received is None else sent + received,)


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
    IndicatorName.PSI_CPU: _Source(_total("psi_cpu_some_ns"), _pressure, is_pressure=True),
    IndicatorName.PSI_MEMORY: _Source(_total("psi_memory_some_ns"), _pressure, is_pressure=True),
    IndicatorName.PSI_IO: _Source(_total("psi_io_some_ns"), _pressure, is_pressure=True),
    # Some are counted once a second only: a window without a look at them is stretched.
    IndicatorName.NET_RATE: _Source(_traffic, _rate, least=1),
}


class CounterWindows:
    """Follows the counters that the services' profiles ask for."""

    __slots__ = ("_proven", "_windows")

    def __init__(self) -> None:
        self._windows: dict[tuple[CgroupId, IndicatorName], DeltaWindow] = {}
        self._proven: set[tuple[CgroupId, IndicatorName]] = set()

    def update(
        self,
        snapshot: Snapshot,
        samples: Mapping[CgroupId, WorkloadSample],
        workload_index: WorkloadIndex,
        alive: bool,
        rebase: bool,
    ) -> None:
        """Take a snapshot; *alive*: the sched probe's part of it. *rebase* after a gap."""
        windows: dict[tuple[CgroupId, IndicatorName], DeltaWindow] = {}
        for service in workload_index.services.values():
            for spec in service.profile.indicators:
                source = COUNTED.get(spec.name)
                if source is None:
                    continue
                time_ns = snapshot.time_ns
                if source.is_pressure and snapshot.pressure_ns is not None:
                    time_ns = snapshot.pressure_ns
                for cgroup in service.cgroups:
                    key = (cgroup, spec.name)
                    window = windows[key] = self._windows.get(key) or DeltaWindow()
                    window.keep_for(spec.window_ns)
                    if rebase:
                        window.clear()
                    sample = samples.get(cgroup)
                    if sample is None or (source.is_sched and not alive):
                        window.push(time_ns, (None,))
                        continue
                    counts = source.counters(sample)
                    window.push(time_ns, counts)
                    if window.alive and all(counts[: source.proof]):
                        self._proven.add(key)
        self._windows = windows
        self._proven &= windows.keys()

    def indicator(self, service: Service, spec: IndicatorSpec) -> Indicator | None:
        """Return the indicator; ``None`` if no workload of *service* ever had its source."""
        proven = [cgroup for cgroup in service.cgroups if (cgroup, spec.name) in self._proven]
        if not proven:
            return None
        idle_cpus = service.profile.idle_oncpu_ratio
        return service_indicator(
            service.name,
            spec,
            ((cgroup, self._measure(cgroup, spec, idle_cpus)) for cgroup in proven),
        )

    def _measure(self, cgroup: CgroupId, spec: IndicatorSpec, idle_cpus: float) -> Measured:
        source = COUNTED[spec.name]
        window = self._windows.get((cgroup, spec.name))
        if window is None or not window.alive:
            return STALE
        least = spec.min_samples * source.events
        gain = window.read(spec.window_ns, least or source.least)
        if gain is None:
            return Measured(IndicatorStatus.FRESH)
        measured = source.judge(gain, idle_cpus)
        if gain.counts[0] < least:
            return measured._replace(value=None)
        return measured
