# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From snapshots to indicators: the one place that remembers counters."""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.blame import BlameBook
from controller.core.indicators.counter_based import COUNTED, CountedWindows
from controller.core.indicators.counters import CounterRate, CpuUse, Samples, smoothing
from controller.core.indicators.link_queue import LINKED, LinkWindows
from controller.core.indicators.measurement import STALE, service_indicator
from controller.core.indicators.run_queue import measure_waits
from controller.core.indicators.windows import STRETCH, CounterWindow, WindowReading
from controller.core.model import CgroupId, IndicatorName, ServiceReading, Snapshot
from controller.core.settings import IndicatorSpec
from controller.core.workload_index import Roster, Service

__all__ = ("Need", "Senses")

_RATE_SMOOTH_S = 2.0
_NEED_SMOOTH_S = 1.0
_NO_NEED_CPUS = 1e-9


class Need(NamedTuple):
    """What a service ran and what it was kept from running by others, in CPUs."""

    oncpu: float
    inflicted: float


class _Still(NamedTuple):
    """A service of which nothing was counted since its windows begin, so they are not moved on.

    ``indicators`` are those of its waits, which stay as long as it stands still, since ``time_ns``.
    """

    service: Service
    time_ns: int
    indicators: dict[IndicatorName, tuple[IndicatorSpec, Indicator]]


class Senses:
    """Everything that is known about the workloads after a tick.

    ``alive`` says whether the probe's data is recent. ``use`` is CPUs by workload, ``running``
    that of those who use any, ``needs`` what each service ran and was kept from running, smoothed
    over 1 s and without those that need nothing, and ``system_cpus`` and ``steal_cpus`` rates over
    2 s; all in CPUs. ``steal_cpus`` is ``None`` where the host does not tell.
    """

    __slots__ = (
        "_awake",
        "_counted",
        "_figures",
        "_links",
        "_readings",
        "_roster",
        "_samples",
        "_steal",
        "_still",
        "_system",
        "_time_ns",
        "_times_ns",
        "_use",
        "_windows",
        "alive",
        "blame",
        "needs",
        "running",
        "steal_cpus",
        "system_cpus",
    )

    def __init__(self) -> None:
        self._windows: dict[CgroupId, CounterWindow] = {}
        self._roster: Roster | None = None
        self._time_ns = 0
        self._awake: dict[str, Service] = {}
        self._still: dict[str, _Still] = {}
        # When windows were pushed to, as far back as they reach.
        self._times_ns: deque[int] = deque()
        self._samples = Samples()
        self._readings: dict[tuple[CgroupId, int, int], WindowReading | None] = {}
        self._counted = CountedWindows()
        self._links = LinkWindows()
        self._figures: dict[str, ServiceReading] = {}
        self._use = CpuUse()
        self._system = CounterRate()
        self._steal = CounterRate()
        self.blame = BlameBook()
        self.alive = False
        self.needs: dict[str, Need] = {}
        self.running: dict[CgroupId, float] = {}
        self.system_cpus = 0.0
        self.steal_cpus: float | None = None

    @property
    def use(self) -> dict[CgroupId, float]:
        """CPUs that each workload used, smoothed over 2 s."""
        return self._use.cpus

    def update(
        self, snapshot: Snapshot, roster: Roster, dt_ns: int, oldest_ns: int, rebase: bool
    ) -> None:
        """Take one snapshot, *dt_ns* after the last (0: the first one).

        Data older than *oldest_ns* is not alive. *rebase* empties the windows after a gap.
        """
        self.alive = snapshot.age_ns is not None and snapshot.age_ns <= oldest_ns
        self._time_ns = snapshot.time_ns
        self._samples.update(snapshot.workloads)
        self._readings.clear()
        self._use.update(self._samples, dt_ns)
        self.running = self._use.running
        self._push(roster, rebase)
        self._counted.update(snapshot, self._samples.by_cgroup, roster, self.alive, rebase)
        self._links.update(snapshot.links, snapshot.time_ns, roster.longest_window_ns, rebase)
        self._figures = {figure.service: figure for figure in snapshot.services}
        self.blame.update(snapshot.blame, self._samples, roster, self.running, dt_ns)
        self._follow_needs(roster, dt_ns)
        self._machine(snapshot, roster, dt_ns)

    def is_steady(self, service: str, names: Collection[IndicatorName]) -> bool:
        """Return whether the service's indicators of these *names* are those of the last tick.

        Then nothing of what they follow from was counted for a while.
        """
        rest = self._still.get(service)
        if rest is None or rest.time_ns == self._time_ns or IndicatorName.SERVICE in names:
            return False
        return not self._links.known or LINKED.isdisjoint(names)

    def reading(self, cgroup: CgroupId, spec: IndicatorSpec) -> WindowReading | None:
        """Return the window that *spec* asks for, of one latency-sensitive workload."""
        key = (cgroup, spec.window_ns, spec.min_samples)
        if key not in self._readings:
            window = self._windows.get(cgroup)
            self._readings[key] = window.read(*key[1:]) if window else None
        return self._readings[key]

    def forget_links(self) -> None:
        """Start as on a host that shapes no link: none is shaped any more, on purpose."""
        self._links = LinkWindows()

    def indicator(self, service: Service, spec: IndicatorSpec) -> Indicator | None:
        """Return the service's indicator for *spec*; ``None`` where it never had a source.

        Then there is nothing to steer by, which is no fault of today. The waits for a CPU always
        have one: without the probe they are ``stale``.
        """
        if spec.name is IndicatorName.SERVICE:
            return self._own_figure(service.name, spec)
        if spec.name in LINKED:
            return self._links.indicator(service.name, spec)
        if spec.name in COUNTED:
            return self._counted.indicator(service, spec)
        rest = self._still.get(service.name)
        if rest is None:
            return self._waits(service, spec)
        known = rest.indicators.get(spec.name)
        if known is None or known[0] is not spec:
            known = rest.indicators[spec.name] = spec, self._waits(service, spec)
        return known[1]

    def _waits(self, service: Service, spec: IndicatorSpec) -> Indicator:
        idle = service.profile.idle_oncpu_ratio
        return service_indicator(
            service.name,
            spec,
            (
                (
                    cgroup,
                    measure_waits(spec, self.reading(cgroup, spec), idle)
                    if self._is_alive(cgroup)
                    else STALE,
                )
                for cgroup in service.cgroups
            ),
        )

    def _own_figure(self, service: str, spec: IndicatorSpec) -> Indicator | None:
        # How old a figure may be is the source's business, which knows how often there is one.
        figure = self._figures.get(service)
        if figure is None:
            return None
        if figure.age_ns is None:
            status = IndicatorStatus.STALE
        elif figure.value is None:
            status = IndicatorStatus.IDLE
        else:
            status = IndicatorStatus.FRESH
        value = figure.value if status is IndicatorStatus.FRESH else None
        samples = 0 if value is None else 1
        return Indicator(
            service=service, name=spec.name, value=value, samples=samples, status=status
        )

    def _is_alive(self, cgroup: CgroupId) -> bool:
        sample = self._samples.by_cgroup.get(cgroup)
        return self.alive and sample is not None and sample.runq_histogram is not None

    def _push(self, roster: Roster, rebase: bool) -> None:
        if rebase:
            self._times_ns.clear()
        if rebase or not self.alive or roster is not self._roster:
            self._sort(roster, rebase)
        self._roster = roster
        samples = self._samples
        for cgroup in (*samples.moved, *samples.came, *samples.gone):
            name = roster.sensitive.get(cgroup, "")
            if name in self._still:
                self._awake[name] = self._still.pop(name).service
        for service in [*self._awake.values()]:
            self._push_to(service, rebase)
            if self.alive and all(self._windows[cgroup].is_still for cgroup in service.cgroups):
                del self._awake[service.name]
                self._still[service.name] = _Still(service, self._time_ns, {})
        if self.alive:
            self._times_ns.append(self._time_ns)
            while self._times_ns[0] < self._time_ns - STRETCH * roster.longest_window_ns:
                self._times_ns.popleft()

    def _sort(self, roster: Roster, rebase: bool) -> None:
        """Find out who still stands still; the others have to be looked at."""
        before, self._still, self._awake = self._still, {}, {}
        for name, service in roster.services.items():
            rest = before.get(name)
            if rest is None or rest.service != service or rebase or not self.alive:
                self._awake[name] = service
            else:
                self._still[name] = rest
        self._windows = {
            cgroup: self._windows.get(cgroup) or CounterWindow(0) for cgroup in roster.sensitive
        }

    def _push_to(self, service: Service, rebase: bool) -> None:
        longest_ns = max((spec.window_ns for spec in service.profile.indicators), default=0)
        for cgroup in service.cgroups:
            window = self._windows[cgroup]
            window.keep_for(longest_ns)
            sample = self._samples.by_cgroup.get(cgroup)
            if rebase or sample is None:
                window.clear()
            elif self._times_ns:
                window.catch_up(self._times_ns)
            if sample is not None and self.alive:
                window.push(self._time_ns, sample)

    def _follow_needs(self, roster: Roster, dt_ns: int) -> None:
        if dt_ns <= 0:
            return
        oncpu: dict[str, float] = {}
        inflicted: dict[str, float] = {}
        for cgroup, (old, new) in self._samples.moved.items():
            if (name := roster.sensitive.get(cgroup)) is not None:
                ran = _gain(old.oncpu_ns, new.oncpu_ns) / dt_ns
                waited = _gain(old.wait_inflicted_ns, new.wait_inflicted_ns) / dt_ns
                oncpu[name] = oncpu.get(name, 0.0) + ran
                inflicted[name] = inflicted.get(name, 0.0) + waited
        # One tick is too noisy to move a ceiling that falls at once.
        weight = smoothing(dt_ns / 1e9, _NEED_SMOOTH_S)
        needs: dict[str, Need] = {}
        for name in {**self.needs, **oncpu}:
            last = self.needs.get(name, Need(0.0, 0.0))
            need = Need(
                last.oncpu + weight * (oncpu.get(name, 0.0) - last.oncpu),
                last.inflicted + weight * (inflicted.get(name, 0.0) - last.inflicted),
            )
            if name in roster.services and max(need) >= _NO_NEED_CPUS:
                needs[name] = need
        self.needs = needs

    def _machine(self, snapshot: Snapshot, roster: Roster, dt_ns: int) -> None:
        weight = smoothing(dt_ns / 1e9, _RATE_SMOOTH_S)
        outside = self._system.update(snapshot.system_oncpu_ns, dt_ns)
        system = outside or 0.0
        system += sum(use for cgroup, use in self.running.items() if cgroup in roster.system)
        self.system_cpus += weight * (system - self.system_cpus)
        steal = self._steal.update(snapshot.steal_ns, dt_ns)
        if snapshot.steal_ns is None:
            self.steal_cpus = None
        elif steal is not None:
            last = self.steal_cpus or 0.0
            self.steal_cpus = last + weight * (steal - last)


def _gain(old: int | None, new: int | None) -> int:
    return 0 if old is None or new is None else max(0, new - old)
