# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Computes indicators, CPU rates and blame from snapshots; holds all state that counters need."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest
from typing import NamedTuple

from controller.core.decision import Indicator
from controller.core.indicators.blame import BlameTracker
from controller.core.indicators.counter_based import COUNTED, LINKED, CounterWindows, LinkWindows
from controller.core.indicators.counters import (
    LEAST_CPUS,
    SMOOTH_S,
    CpuUse,
    SampleDiff,
    increase,
    rate,
)
from controller.core.indicators.measurement import (
    STALE,
    WAITS,
    Measured,
    WindowReading,
    measure_waits,
    service_indicator,
)
from controller.core.indicators.own_figure import OwnFigures
from controller.core.indicators.windows import STRETCH, WaitWindow
from controller.core.limiters import smoothing
from controller.core.model import CgroupId, IndicatorName, Outside, Snapshot
from controller.core.settings import IndicatorSpec
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("CpuNeed", "IndicatorTracker")


class CpuNeed(NamedTuple):
    """CPU need of a service, in CPUs: time on the CPU, and wait that others inflicted."""

    oncpu: float = 0.0
    inflicted: float = 0.0


class _Quiescent(NamedTuple):
    """A quiescent service: no counter of its workloads changed within its longest window.

    Its windows are not advanced. The run-queue ``indicators`` computed at ``time_ns`` are reused
    until a counter changes.
    """

    service: Service
    time_ns: int
    indicators: dict[IndicatorName, tuple[IndicatorSpec, Indicator]]


class IndicatorTracker:
    """Indicators and rates of all workloads, as of the last tick.

    ``probe_alive``: the data of the sched probe is recent. All rates are in CPUs: ``use`` of
    every workload, ``active`` of those that use any CPU, ``cpu_need`` of each service, smoothed
    over 1 s and without services that need none, ``outside_cpus`` of work outside all workloads,
    ``system_cpus`` of that, unknown work and the workloads of class system, and ``steal_cpus``,
    smoothed over 2 s. ``steal_cpus`` is ``None`` where the host does not report steal. ``outside``
    has the paths of cgroups outside all workloads, also of the last that left: they may have blame.
    ``samples`` are those of the workloads, ``counted`` the windows over their other counters.
    """

    def __init__(self) -> None:
        self._windows: dict[CgroupId, WaitWindow] = {}
        self._workload_index: WorkloadIndex | None = None
        self.time_ns = 0  # of the last snapshot
        self._active: dict[str, Service] = {}
        self._quiescent: dict[str, _Quiescent] = {}
        # Times of the pushes to windows, as far back as the windows reach.
        self._times_ns: deque[int] = deque()
        self._snapshot = Snapshot(time_ns=0, age_ns=None, workloads=())
        self.samples = SampleDiff()
        self.counted = CounterWindows()
        self._links = LinkWindows()
        self._figures = OwnFigures()
        self.use = CpuUse()
        self.blame = BlameTracker()
        self.probe_alive = False
        self.cpu_need: dict[str, CpuNeed] = {}
        self.active: dict[CgroupId, float] = {}
        self.outside: Mapping[CgroupId, str] = {}
        self.outside_cpus = 0.0
        self.system_cpus = 0.0
        self.steal_cpus: float | None = None

    def update(
        self,
        snapshot: Snapshot,
        workload_index: WorkloadIndex,
        dt_ns: int,
        oldest_ns: int,
        longest_gap_ns: int,
    ) -> None:
        """Take one snapshot, *dt_ns* after the last (0: the first one).

        Probe data older than *oldest_ns* is not alive. After more than *longest_gap_ns* without a
        snapshot, or without data that is alive, the windows start empty.
        """
        before, self._snapshot = self._snapshot, snapshot
        self.probe_alive = snapshot.age_ns is not None and snapshot.age_ns <= oldest_ns
        self.time_ns = snapshot.time_ns
        self.samples.update(snapshot.workloads)
        self.use.update(self.samples, dt_ns)
        self.active = self.use.active
        self._advance(workload_index, longest_gap_ns)
        rebase = dt_ns > longest_gap_ns
        self.counted.update(
            snapshot, self.samples.by_cgroup, workload_index, self.probe_alive, rebase
        )
        self._links.update(
            snapshot.links, snapshot.time_ns, workload_index.longest_window_ns, rebase
        )
        if snapshot.outside is not before.outside:
            self.outside = _named(self.outside, snapshot.outside)
        if snapshot.services or before.services:
            self._figures.update(snapshot, workload_index, self.samples, dt_ns)
        self._update_needs(workload_index, dt_ns)
        self._update_machine(before, snapshot, workload_index, dt_ns)
        self.blame.update(
            snapshot.blame, self.samples, workload_index, self.active, self.outside_cpus, dt_ns
        )

    def is_steady(self, service: str, names: Collection[IndicatorName]) -> bool:
        """Return whether the service's indicators of these *names* equal those of the last tick.

        They do when the service was quiescent before this tick, unless *names* has the service's
        own figure or, where links have been shaped, an indicator of links.
        """
        quiescent = self._quiescent.get(service)
        if quiescent is None or quiescent.time_ns == self.time_ns or IndicatorName.SERVICE in names:
            return False
        return not self._links.known or LINKED.isdisjoint(names)

    def reading(self, cgroup: CgroupId, spec: IndicatorSpec) -> WindowReading | None:
        """Return the reading of a latency-sensitive workload over the window of *spec*.

        ``None`` while the workload has no two samples.
        """
        window = self._windows.get(cgroup)
        return None if window is None else window.read(spec.window_ns, spec.min_samples)

    def waits_in_each_tick(
        self, service: Service, spec: IndicatorSpec, least: float, ticks: int
    ) -> bool:
        """Whether the indicator is *least* or more in each of the last *ticks* ticks by itself.

        A window holds a stall of a few milliseconds for as long as it is; what a neighbour does
        shows in every tick. A tick in which no wait ended shows nothing, nor does an indicator of
        another source than the waits for a CPU.
        """
        if spec.name not in WAITS:
            return True

        def reaches(reading: WindowReading) -> bool:
            return (WAITS[spec.name](reading) or 0.0) >= least

        windows = (self._windows.get(cgroup) for cgroup in service.cgroups)
        known = (window.last_ticks(ticks, reaches) for window in windows if window is not None)
        return all(
            any(each is None or not each.samples or reaches(each) for each in readings)
            for readings in zip_longest(*known)
        )

    def reset_links(self) -> None:
        """Discard all links, after the agent stopped shaping; the loops turn off, not stale."""
        self._links = LinkWindows()

    def indicator(self, service: Service, spec: IndicatorSpec) -> Indicator | None:
        """Return the service's indicator for *spec*; ``None`` where it has never had a source.

        A source that existed before and is missing now makes the indicator ``stale``. The waits for
        a CPU always have a source: without the probe they are ``stale``, never ``None``.
        """
        if spec.name is IndicatorName.SERVICE:
            need = self.cpu_need.get(service.name, CpuNeed())
            return self._figures.indicator(service.name, spec, need.oncpu)
        if spec.name in LINKED:
            return self._links.indicator(service.name, spec)
        if spec.name in COUNTED:
            return self.counted.indicator(service, spec)
        quiescent = self._quiescent.get(service.name)
        if quiescent is None:
            return self._waits(service, spec)
        known = quiescent.indicators.get(spec.name)
        if known is None or known[0] is not spec:
            known = quiescent.indicators[spec.name] = spec, self._waits(service, spec)
        return known[1]

    def _waits(self, service: Service, spec: IndicatorSpec) -> Indicator:
        idle = service.profile.idle_oncpu_ratio

        def measure(cgroup: CgroupId) -> Measured:
            alive = self._is_alive(cgroup)
            return measure_waits(spec, self.reading(cgroup, spec), idle) if alive else STALE

        return service_indicator(
            service.name, spec, ((cgroup, measure(cgroup)) for cgroup in service.cgroups)
        )

    def _is_alive(self, cgroup: CgroupId) -> bool:
        sample = self.samples.by_cgroup.get(cgroup)
        return self.probe_alive and sample is not None and sample.runq_histogram is not None

    def _advance(self, workload_index: WorkloadIndex, longest_gap_ns: int) -> None:
        times_ns = self._times_ns
        rebase = bool(times_ns) and self.time_ns - times_ns[-1] > longest_gap_ns
        if rebase:
            self._times_ns.clear()
        if rebase or not self.probe_alive or workload_index is not self._workload_index:
            self._split(workload_index, rebase)
        self._workload_index = workload_index
        samples = self.samples
        for cgroup in (*samples.changed, *samples.added, *samples.removed):
            name = workload_index.sensitive.get(cgroup, "")
            if name in self._quiescent:
                self._active[name] = self._quiescent.pop(name).service
        for service in [*self._active.values()]:
            self._advance_service(service, rebase)
            if self.probe_alive and all(
                self._windows[cgroup].is_quiescent for cgroup in service.cgroups
            ):
                del self._active[service.name]
                self._quiescent[service.name] = _Quiescent(service, self.time_ns, {})
        if self.probe_alive:
            self._times_ns.append(self.time_ns)
            while self._times_ns[0] < self.time_ns - STRETCH * workload_index.longest_window_ns:
                self._times_ns.popleft()

    def _split(self, workload_index: WorkloadIndex, rebase: bool) -> None:
        """Divide the services into quiescent ones and active ones, whose windows are advanced."""
        before, self._quiescent, self._active = self._quiescent, {}, {}
        for name, service in workload_index.services.items():
            quiescent = before.get(name)
            if quiescent is None or quiescent.service != service or rebase or not self.probe_alive:
                self._active[name] = service
            else:
                self._quiescent[name] = quiescent
        self._windows = {
            cgroup: self._windows.get(cgroup) or WaitWindow() for cgroup in workload_index.sensitive
        }

    def _advance_service(self, service: Service, rebase: bool) -> None:
        longest_ns = max((spec.window_ns for spec in service.profile.indicators), default=0)
        for cgroup in service.cgroups:
            window = self._windows[cgroup]
            window.keep_for(longest_ns)
            sample = self.samples.by_cgroup.get(cgroup)
            if rebase or sample is None:
                window.clear()
            elif self._times_ns:
                window.catch_up(self._times_ns)
            if sample is not None and self.probe_alive:
                window.push(self.time_ns, sample)

    def _update_needs(self, workload_index: WorkloadIndex, dt_ns: int) -> None:
        if dt_ns <= 0:
            return
        ran: dict[str, CpuNeed] = {}
        for cgroup, (old, new) in self.samples.changed.items():
            if (name := workload_index.sensitive.get(cgroup)) is not None:
                before = ran.get(name, CpuNeed())
                ran[name] = CpuNeed(
                    before.oncpu + increase(old.oncpu_ns, new.oncpu_ns) / dt_ns,
                    before.inflicted
                    + increase(old.wait_inflicted_ns, new.wait_inflicted_ns) / dt_ns,
                )
        # Smoothed, because the ceiling of the quota falls at once and one tick is too noisy.
        weight = smoothing(dt_ns / 1e9, SMOOTH_S / 2)
        needs: dict[str, CpuNeed] = {}
        for name in {**self.cpu_need, **ran}:
            pairs = zip(self.cpu_need.get(name, CpuNeed()), ran.get(name, CpuNeed()), strict=True)
            need = CpuNeed(*(last + weight * (now - last) for last, now in pairs))
            if name in workload_index.services and max(need) >= LEAST_CPUS:
                needs[name] = need
        self.cpu_need = needs

    def _update_machine(
        self, before: Snapshot, snapshot: Snapshot, workload_index: WorkloadIndex, dt_ns: int
    ) -> None:
        weight = smoothing(dt_ns / 1e9, SMOOTH_S)
        outside = rate(before.system_oncpu_ns, snapshot.system_oncpu_ns, dt_ns)
        if outside is None:  # not measurable in this tick, which does not mean that there was none
            outside = self.outside_cpus
        self.outside_cpus += weight * (outside - self.outside_cpus)
        # Unknown work takes CPU from everything else, but is no excuse for best-effort: it lowers
        # the ceiling and has no part in the division of unattributed waits.
        unknown = rate(before.unknown_oncpu_ns, snapshot.unknown_oncpu_ns, dt_ns) or 0.0
        system = (
            outside
            + unknown
            + sum(use for cgroup, use in self.active.items() if cgroup in workload_index.system)
        )
        self.system_cpus += weight * (system - self.system_cpus)
        steal = rate(before.steal_ns, snapshot.steal_ns, dt_ns)
        if snapshot.steal_ns is None:
            self.steal_cpus = None
        elif steal is not None:
            last = self.steal_cpus or 0.0
            self.steal_cpus = last + weight * (steal - last)


def _named(known: Mapping[CgroupId, str], present: Iterable[Outside]) -> dict[CgroupId, str]:
    now = {each.cgroup: each.path for each in present}
    gone = [(cgroup, path) for cgroup, path in known.items() if cgroup not in now]
    return dict(gone[-64:]) | now  # as many as the probe measures
