# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a tick finds that lets the next one be left out, and how much services may wait until then.

``controller/agent/schedule.py`` has the whole rule. The indicators of other sources need no look.
Their files and counters are read once a second, or their windows are a second or longer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from controller.core.decision import UNKNOWN, IndicatorStatus, LoopReport
from controller.core.indicators.measurement import QUANTILES
from controller.core.model import CgroupId, IndicatorName
from controller.core.settings import DEAD_ZONE, IndicatorSpec
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex

__all__ = (
    "LONGEST_NS",
    "PRESSURES",
    "TOLD",
    "LimitTable",
    "PressureLimit",
    "Quiet",
    "RatioLimit",
    "Strain",
    "TickReason",
    "WaitLimit",
    "strain_in_plan",
)

# Most time between two ticks while a service is awake: files are read and windows are learned once
# a second, and windows of a second keep their length within a factor of two.
_AWAKE_NS = NS_PER_SEC
# The same while all services are asleep, and so in any case. Pages and metrics are no older.
LONGEST_NS = 2 * _AWAKE_NS
# What a sweet point allows, in limits of a look: a window may hold twice as much as its last part
# shows. The kernel tells only then: a tick that comes sooner finds nothing to decide, and a squeeze
# needs three ticks that do (loop/service_loops.py).
TOLD = 2.0
# What the kernel tells of by itself: the part of the time in which some task stalls.
PRESSURES = (IndicatorName.PSI_CPU, IndicatorName.PSI_MEMORY, IndicatorName.PSI_IO)
# Part of the time by which waits may be longer than a sweet point in all. A service that gets no
# CPU has so few waits that their share says nothing, compared with the waits of before.
_STARVED = 0.05


class TickReason(StrEnum):
    """Why a tick was made.

    ``off``: looks are switched off, or there is no sched probe. ``start``: nothing is known yet, at
    the start or after an abandoned tick. ``interval``: the last tick is the longest time ago.
    ``late``: the agent did not get a CPU in time. ``active``: a service suffers, or best-effort
    work is limited, or a knob changed. ``near``: a service was near its sweet point or without
    data. ``waits``: a service waits more. ``woken``: the same, told by the kernel before a tick was
    due. ``pressure``: the pressure of a service passed its sweet point, by a message of the kernel.
    ``workloads``: workloads may have come or gone. ``knobs``: knobs are to be read for the first
    time, or links or cookies to be followed. ``figure``: a service reported a figure.
    ``pause``: a pause began or ended. ``reload``: the configuration was read. ``request``: a page
    was asked for. ``arrival``: a container is about to run. ``memory``: not much memory is
    available. ``recording``: all is recorded.
    """

    OFF = "off"
    START = "start"
    INTERVAL = "interval"
    LATE = "late"
    ACTIVE = "active"
    NEAR = "near"
    WAITS = "waits"
    WOKEN = "woken"
    PRESSURE = "pressure"
    WORKLOADS = "workloads"
    KNOBS = "knobs"
    FIGURE = "figure"
    PAUSE = "pause"
    RELOAD = "reload"
    REQUEST = "request"
    ARRIVAL = "arrival"
    MEMORY = "memory"
    RECORDING = "recording"


class Strain(IntEnum):
    """How the worst service of a tick is, relative to its sweet point.

    ``NEAR``: not far below it or above it, or without data. ``HIGH``: so far above it that a few
    such ticks are enough for a squeeze (``IndicatorLoop.update``).
    """

    WELL = 0
    NEAR = 1
    HIGH = 2


class WaitLimit(NamedTuple):
    """How much a workload may wait before a tick judges it.

    At most *share* of its waits may be longer than *sweet_ns*; or, ``by_time``, what they are
    longer may be at most *share* of the time. Both count in a window of *window_ns*.
    """

    cgroup: CgroupId
    sweet_ns: float
    share: float
    window_ns: int
    by_time: bool


class RatioLimit(NamedTuple):
    """The largest inflicted wait of a workload as a part of that and its runs, before a tick.

    It does not count below *idle_ns*, in which a service counts as idle.
    """

    cgroup: CgroupId
    ratio: float
    idle_ns: float


class PressureLimit(NamedTuple):
    """The part of a window of *window_ns* in which a task of a workload may stall.

    *indicator* is one of ``PRESSURES``, *ratio* its sweet point. The kernel tells of more.
    """

    cgroup: CgroupId
    indicator: IndicatorName
    ratio: float
    window_ns: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """What a tick found: the ``reason`` for which the next look makes a tick in any case.

    Without one, the next tick comes when a workload exceeds one of ``waits`` or ``ratios``, or when
    the kernel tells that it exceeds one of ``pressures``. Else it comes at the next due moment, if
    ``strain`` shows that a service is not well, or ``longest_ns`` after this one.
    """

    reason: TickReason | None = TickReason.START
    longest_ns: int = 0
    waits: tuple[WaitLimit, ...] = ()
    ratios: tuple[RatioLimit, ...] = ()
    pressures: tuple[PressureLimit, ...] = ()
    strain: Strain = Strain.WELL


def strain_in_plan(loops: Iterable[LoopReport]) -> Strain:
    """Return how the worst of the services of *loops* is."""
    strain = Strain.WELL
    for loop in loops:
        known = [each for each in (loop.deviation, loop.filtered_deviation) if each is not None]
        if any(each >= 1 for each in known):
            return Strain.HIGH
        if any(each >= -DEAD_ZONE for each in known) or loop.status in UNKNOWN:
            strain = Strain.NEAR
    return strain


class LimitTable:
    """The limits of all services at their present sweet points; unchanged ones are kept."""

    def __init__(self) -> None:
        self._awake_ns = _AWAKE_NS
        self._index: WorkloadIndex | None = None
        self._points: tuple[float | None, ...] = ()
        self._waits: tuple[WaitLimit, ...] = ()
        self._ratios: tuple[RatioLimit, ...] = ()
        self._pressures: tuple[PressureLimit, ...] = ()

    def update(
        self, index: WorkloadIndex, loops: tuple[LoopReport, ...], strain: Strain = Strain.WELL
    ) -> Quiet:
        """Return what holds until the next tick, for the services of *index* and their *loops*.

        *strain* is what the last tick found.
        """
        points = tuple(each.sweet_point for each in loops)
        if index is not self._index or points != self._points:
            self._index, self._points = index, points
            self._make(index, loops)
        asleep = all(each.status is IndicatorStatus.IDLE for each in loops)
        longest_ns = LONGEST_NS if asleep else self._awake_ns
        return Quiet(None, longest_ns, self._waits, self._ratios, self._pressures, strain)

    def _make(self, index: WorkloadIndex, loops: Iterable[LoopReport]) -> None:
        known = {(each.service, each.indicator): each.sweet_point for each in loops}
        kept = {each: each for each in self._waits}
        windows_ns = {_AWAKE_NS}
        waits: list[WaitLimit] = []
        ratios: list[RatioLimit] = []
        pressures: list[PressureLimit] = []
        for service in index.services.values():
            idle_ns = service.profile.idle_oncpu_ratio * _AWAKE_NS
            for spec in () if service.paused else service.profile.indicators:
                windows_ns.add(spec.window_ns)
                point = _sweet_point(spec, known.get((service.name, spec.name)))
                if point is None:
                    continue
                for cgroup in service.cgroups:
                    if spec.name is IndicatorName.WAIT_RATIO:
                        ratios.append(RatioLimit(cgroup, point / TOLD, idle_ns))
                    if spec.name in PRESSURES:
                        pressures.append(PressureLimit(cgroup, spec.name, point, spec.window_ns))
                    waits += (
                        WaitLimit(cgroup, point, share, spec.window_ns, by_time)
                        for share, by_time in _shares(spec.name)
                    )
        self._awake_ns = min(windows_ns)
        self._waits = tuple(kept.get(each, each) for each in waits)
        self._ratios = tuple(ratios)
        self._pressures = tuple(pressures)


def _shares(name: IndicatorName) -> Iterable[tuple[float, bool]]:
    """Yield the share of each ``WaitLimit`` for an indicator, and whether it is one by time."""
    if (quantile := QUANTILES.get(name)) is not None:
        yield (1.0 - quantile) / TOLD, False
        yield _STARVED, True
    elif name is IndicatorName.RUNQ_DELAY_P99:
        yield (1.0 - 0.99) / TOLD, True


def _sweet_point(spec: IndicatorSpec, present: float | None) -> float | None:
    """Return the sweet point at the present load, or the lowest where the load is not known."""
    if present is not None:
        return present
    known = [each.sweet_point for each in spec.bins]
    if spec.sweet_point is not None:
        known.append(spec.sweet_point)
    return min(known, default=None)
