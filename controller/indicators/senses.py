# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From snapshots to indicators: the one place that remembers counters."""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from controller.decision import Indicator, IndicatorStatus
from controller.indicators.blame import BlameBook
from controller.indicators.counted import COUNTED, CountedWindows
from controller.indicators.links import LINKED, LinkWindows
from controller.indicators.rates import CounterRate, CpuUse, smoothing
from controller.indicators.roster import Roster, Service
from controller.indicators.service import STALE, service_indicator
from controller.indicators.waits import measure_waits
from controller.indicators.window import STRETCH, CounterWindow, WindowReading
from controller.model import CgroupId, IndicatorName, ServiceReading, Snapshot, WorkloadSample
from controller.settings import IndicatorSpec

__all__ = ("Need", "Senses")

_RATE_SMOOTH_S = 2.0
_NEED_SMOOTH_S = 1.0


class Need(NamedTuple):
    """What a service ran and what it was kept from running by others, in CPUs."""

    oncpu: float
    inflicted: float


class _Still(NamedTuple):
    """A service of which nothing was counted since its windows begin, so they are not moved on.

    ``indicators`` are those of its waits, which stay as long as it stands still.
    """

    service: Service
    indicators: dict[IndicatorName, tuple[IndicatorSpec, Indicator]]


class Senses:
    """Everything that is known about the workloads after a tick.

    ``alive`` says whether the probe's data is recent. ``use`` is CPUs by workload,
    ``needs`` what each service ran and was kept from running, smoothed over 1 s, and
    ``system_cpus`` and ``steal_cpus`` rates over 2 s; all in CPUs. ``steal_cpus`` is ``None``
    where the host does not tell.
    """

    __slots__ = (
        "_counted",
        "_figures",
        "_links",
        "_readings",
        "_samples",
        "_steal",
        "_still",
        "_system",
        "_times_ns",
        "_use",
        "_windows",
        "alive",
        "blame",
        "needs",
        "steal_cpus",
        "system_cpus",
    )

    def __init__(self) -> None:
        self._windows: dict[CgroupId, CounterWindow] = {}
        self._still: dict[str, _Still] = {}
        # When windows were pushed to, as far back as they reach.
        self._times_ns: deque[int] = deque()
        self._samples: dict[CgroupId, WorkloadSample] = {}
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
        before = self._samples
        self._samples = {sample.cgroup: sample for sample in snapshot.workloads}
        self._readings.clear()
        self._use.update(snapshot.workloads, dt_ns)
        moved = before.keys() - self._samples.keys()
        moved |= {
            cgroup
            for cgroup, sample in self._samples.items()
            if (last := before.get(cgroup)) is not sample and last != sample
        }
        self._push(snapshot.time_ns, roster, moved, rebase)
        self._counted.update(snapshot, self._samples, roster, self.alive, rebase)
        self._links.update(snapshot.links, snapshot.time_ns, roster.longest_window_ns, rebase)
        self._figures = {figure.service: figure for figure in snapshot.services}
        self.blame.update(
            snapshot.blame, self._samples, roster.sensitive, roster.best_effort, self.use, dt_ns
        )
        self._follow_needs(before, roster, dt_ns)
        self._machine(snapshot, roster, dt_ns)

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
        sample = self._samples.get(cgroup)
        return self.alive and sample is not None and sample.runq_histogram is not None

    def _push(
        self, time_ns: int, roster: Roster, moved: Collection[CgroupId], rebase: bool
    ) -> None:
        if rebase:
            self._times_ns.clear()
        windows: dict[CgroupId, CounterWindow] = {}
        still: dict[str, _Still] = {}
        for name, service in roster.services.items():
            rest = None if rebase or not self.alive else self._still.get(name)
            if rest and rest.service == service and not any(c in moved for c in service.cgroups):
                still[name] = rest
                for cgroup in service.cgroups:
                    windows[cgroup] = self._windows[cgroup]
                continue
            longest_ns = max((spec.window_ns for spec in service.profile.indicators), default=0)
            for cgroup in service.cgroups:
                window = self._windows.get(cgroup) or CounterWindow(longest_ns)
                window.keep_for(longest_ns)
                sample = self._samples.get(cgroup)
                if rebase or sample is None:
                    window.clear()
                elif self._times_ns:
                    window.catch_up(self._times_ns)
                if sample is not None and self.alive:
                    window.push(time_ns, sample)
                windows[cgroup] = window
            if self.alive and all(windows[cgroup].is_still for cgroup in service.cgroups):
                still[name] = _Still(service, {})
        self._windows, self._still = windows, still
        if self.alive:
            self._times_ns.append(time_ns)
            while self._times_ns[0] < time_ns - STRETCH * roster.longest_window_ns:
                self._times_ns.popleft()

    def _follow_needs(
        self, before: dict[CgroupId, WorkloadSample], roster: Roster, dt_ns: int
    ) -> None:
        if dt_ns <= 0:
            return
        weight = smoothing(dt_ns / 1e9, _NEED_SMOOTH_S)
        needs: dict[str, Need] = {}
        for service in roster.services.values():
            oncpu = inflicted = 0.0
            for cgroup in () if service.name in self._still else service.cgroups:
                old, new = before.get(cgroup), self._samples.get(cgroup)
                if old is not None and new is not None:
                    oncpu += _gain(old.oncpu_ns, new.oncpu_ns) / dt_ns
                    inflicted += _gain(old.wait_inflicted_ns, new.wait_inflicted_ns) / dt_ns
            last = self.needs.get(service.name, Need(0.0, 0.0))
            # One tick is too noisy to move a ceiling that falls at once.
            needs[service.name] = Need(
                last.oncpu + weight * (oncpu - last.oncpu),
                last.inflicted + weight * (inflicted - last.inflicted),
            )
        self.needs = needs

    def _machine(self, snapshot: Snapshot, roster: Roster, dt_ns: int) -> None:
        weight = smoothing(dt_ns / 1e9, _RATE_SMOOTH_S)
        outside = self._system.update(snapshot.system_oncpu_ns, dt_ns)
        system = outside or 0.0
        for cgroup in roster.system:
            system += self.use.get(cgroup, 0.0)
        self.system_cpus += weight * (system - self.system_cpus)
        steal = self._steal.update(snapshot.steal_ns, dt_ns)
        if snapshot.steal_ns is None:
            self.steal_cpus = None
        elif steal is not None:
            last = self.steal_cpus or 0.0
            self.steal_cpus = last + weight * (steal - last)


def _gain(old: int | None, new: int | None) -> int:
    return 0 if old is None or new is None else max(0, new - old)
