# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The figures that services report themselves, and whether they move as their work does.

A source may begin to answer in another unit, or for another service. A figure that is suddenly
several times larger or smaller, while the service does the same work in the same time, is wrong.
The exception is one that becomes larger as best-effort work begins to do more, or as a pause
begins: a link or a disk that both share slows requests down, and not the work of the service's own
tasks.
"""

from collections.abc import Iterable, Mapping
import math
from typing import NamedTuple

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.counters import SampleDiff, increase
from controller.core.model import CgroupId, ServiceReading, Snapshot, WorkloadSample
from controller.core.settings import IndicatorSpec
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("FigureCheck", "OwnFigures", "Pace", "gain", "pace_of")

# What is usual is an average over this time, what is now over that one. Nothing is judged before
# the usual values are known for two thirds of the first.
_USUAL_S, _NOW_S = 30.0, 2.0
# The figure of a loaded service follows its work steeply: 5 % more time or load allow 2.7 times
# the figure. Beyond this it may move by the factor 4 by itself, and a wrong figure is
# right again within the factor 2 of the usual one.
_STEEP, _FREE = 20.0, math.log(4.0)
# After this time the figure is taken as it is: the service has changed in a way not seen here.
_LONGEST_NS = 600 * NS_PER_SEC
# Best-effort work that does so much more at most so long after a jump may be the cause of it.
_MUCH_MORE, _TOGETHER_NS = 1.5, 10 * NS_PER_SEC
# What best-effort work does is compared above these: in CPUs, and in bytes/ns to links and disks.
_LEAST_CPUS, _LEAST_TRAFFIC = 0.02, 1e-3


class Pace(NamedTuple):
    """Logarithms of a service's time per work, waits included (``slowdown``), and of its work.

    The work (``load``) is counted in instructions, without counters in packets, without these in
    CPU time.
    """

    slowdown: float
    load: float


def gain(old: WorkloadSample, new: WorkloadSample, name: str) -> float:
    """Return the growth of the counter *name*; 0 where it is not measured."""
    return float(increase(getattr(old, name), getattr(new, name)))


def pace_of(
    service: Service, changed: Mapping[CgroupId, tuple[WorkloadSample, WorkloadSample]], dt_ns: int
) -> Pace | None:
    """Return the pace of a service in the tick of *dt_ns*; ``None`` if it hardly ran."""
    pairs = [changed[cgroup] for cgroup in service.cgroups if cgroup in changed]

    def total(*names: str) -> float:
        return sum(gain(*pair, name) for pair in pairs for name in names)

    oncpu = total("oncpu_ns")
    # A service that uses less than 2 % of a CPU runs too rarely for a slowdown.
    if dt_ns <= 0 or oncpu < 0.02 * dt_ns:
        return None
    waiting = math.log1p(total("wait_inflicted_ns") / oncpu)
    cycles, instructions = total("cycles"), total("instructions")
    if cycles > 0 and instructions > 0:
        return Pace(math.log(cycles / instructions) + waiting, math.log(instructions / dt_ns))
    packets = total("rx_packets", "tx_packets")
    if packets > 0:
        return Pace(math.log(oncpu / packets) + waiting, math.log(packets / dt_ns))
    return Pace(waiting, math.log(oncpu / dt_ns))


class _Others:
    """What best-effort work does: CPU time, traffic of the network, traffic of disks."""

    def __init__(self) -> None:
        self._usual, self._now = [0.0] * 3, [0.0] * 3
        self._known_s = 0.0

    @property
    def do_more(self) -> bool:
        """Whether it does much more of one of them now than usually."""
        least = _LEAST_CPUS, _LEAST_TRAFFIC, _LEAST_TRAFFIC
        rows = zip(self._now, self._usual, least, strict=True)
        return any(now > _MUCH_MORE * max(usual, least) for now, usual, least in rows)

    def update(
        self,
        cgroups: Iterable[CgroupId],
        changed: Mapping[CgroupId, tuple[WorkloadSample, WorkloadSample]],
        dt_ns: int,
    ) -> None:
        """Take what *cgroups* did in the tick of *dt_ns*."""
        if dt_ns <= 0:
            return
        pairs = [changed[cgroup] for cgroup in cgroups if cgroup in changed]
        rates = (
            sum(gain(*pair, "oncpu_ns") for pair in pairs) / dt_ns,
            sum(gain(*pair, name) for name in ("rx_bytes", "tx_bytes") for pair in pairs) / dt_ns,
            sum(gain(*pair, "io_bytes") for pair in pairs) / dt_ns,
        )
        dt_s = dt_ns / NS_PER_SEC
        self._known_s += dt_s
        for averages, time_s in ((self._now, _NOW_S), (self._usual, _USUAL_S)):
            weight = dt_s / min(max(time_s, dt_s), self._known_s)
            for place, rate in enumerate(rates):
                averages[place] += weight * (rate - averages[place])


class FigureCheck:
    """The usual figure and pace of one service.

    The usual ones stay as they are while a figure is far away without the service's work.
    """

    __slots__ = ("_by_others", "_drift", "_figure", "_known_s", "_now", "_since_ns", "_usual")

    def __init__(self) -> None:
        self._figure = self._drift = 0.0
        self._usual = self._now = Pace(0.0, 0.0)
        self._known_s = 0.0
        self._since_ns: int | None = None
        self._by_others = False

    @property
    def wrong(self) -> bool:
        """Whether the last figure contradicts the pace of the service and best-effort work."""
        return self._since_ns is not None and not (self._by_others and self._drift > 0)

    def update(
        self, value: float, pace: Pace, now_ns: int, dt_s: float, *, others_do_more: bool = False
    ) -> None:
        """Take the figure *value* (above 0) and the pace of one tick of *dt_s*.

        *others_do_more*: best-effort work does much more than usually, or was paused lately.
        """
        figure = math.log(value)
        if self._known_s == 0.0:
            self._figure, self._usual, self._now = figure, pace, pace
        self._now = _moved(self._now, pace, min(1.0, dt_s / _NOW_S))
        self._drift = figure - self._figure
        moved = abs(self._drift)
        if self._since_ns is None:
            with_work = sum(
                abs(now - usual) for now, usual in zip(self._now, self._usual, strict=True)
            )
            if self._known_s >= _USUAL_S * 2 / 3 and moved > _FREE + _STEEP * with_work:
                self._since_ns, self._by_others = now_ns, False
        elif moved < _FREE / 2:
            self._since_ns = None
        elif self._by_others and self._drift < -_FREE:  # another jump
            self._since_ns, self._by_others = now_ns, False
        elif self.wrong and now_ns - self._since_ns > _LONGEST_NS:
            self._since_ns, self._known_s = None, 0.0
        if self._since_ns is not None and now_ns - self._since_ns <= _TOGETHER_NS:
            self._by_others = self._by_others or others_do_more
        if self._since_ns is None:
            self._known_s += dt_s
            weight = min(1.0, dt_s / min(_USUAL_S, self._known_s))
            self._figure += weight * (figure - self._figure)
            self._usual = _moved(self._usual, self._now, weight)


def _moved(before: Pace, pace: Pace, weight: float) -> Pace:
    return Pace(*(old + weight * (new - old) for old, new in zip(before, pace, strict=True)))


class OwnFigures:
    """The figures of all services in the last tick."""

    def __init__(self) -> None:
        self._figures: dict[str, ServiceReading] = {}
        self._checks: dict[str, FigureCheck] = {}
        self._others = _Others()
        self._paused = False
        self._pause_ns = 0  # when a pause began last
        # The CPUs that each service used when its figure last had a value.
        self._worked: dict[str, float] = {}

    def update(
        self, snapshot: Snapshot, workload_index: WorkloadIndex, samples: SampleDiff, dt_ns: int
    ) -> None:
        """Take one snapshot, *dt_ns* after the last (0: the first one)."""
        self._figures = {figure.service: figure for figure in snapshot.services}
        self._worked = {name: cpus for name, cpus in self._worked.items() if name in self._figures}
        self._checks = {name: self._checks.get(name) or FigureCheck() for name in self._figures}
        if not self._figures:
            return
        cgroups = (*workload_index.best_effort, *workload_index.paused)
        self._others.update(cgroups, samples.changed, dt_ns)
        if workload_index.paused and not self._paused:
            self._pause_ns = snapshot.time_ns
        self._paused = bool(workload_index.paused)
        # A link without tiers harms more at the same traffic.
        begins = self._paused and snapshot.time_ns - self._pause_ns < _TOGETHER_NS
        do_more = self._others.do_more or begins
        for name, figure in self._figures.items():
            service = workload_index.services.get(name)
            if service is None or not figure.value or figure.value < 0:
                continue
            pace = pace_of(service, samples.changed, dt_ns)
            if pace is not None:
                dt_s = dt_ns / NS_PER_SEC
                check, now_ns = self._checks[name], snapshot.time_ns
                check.update(figure.value, pace, now_ns, dt_s, others_do_more=do_more)

    def indicator(self, service: str, spec: IndicatorSpec, cpus: float) -> Indicator | None:
        """Return the figure of *service*, which uses *cpus* CPUs; ``None``: it reports none."""
        # The source decides when a figure is too old, because it knows how often it is updated.
        figure = self._figures.get(service)
        if figure is None:
            return None
        value = None if figure.age_ns is None else figure.value
        if value is not None:
            wrong = self._checks[service].wrong
            status = IndicatorStatus.IMPLAUSIBLE if wrong else IndicatorStatus.FRESH
            self._worked[service] = cpus
        elif cpus > 0 and cpus >= self._worked.get(service, math.inf) / 2:
            # With half of the use of its last figure it has requests, also if no figure says so.
            status = IndicatorStatus.LOST
        elif figure.age_ns is None:
            status = IndicatorStatus.STALE
        else:
            status = IndicatorStatus.IDLE
        samples = 0 if value is None else 1
        return Indicator(
            service=service, name=spec.name, value=value, samples=samples, status=status
        )
