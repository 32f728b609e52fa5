# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is learned about one indicator of one service: state, records of it, and the sweet points.

The load of a workload is divided into half octaves, because what is normal changes with it: a busy
service handles several requests per wake-up, and queues behind itself. A load of which nothing is
known takes the sweet points of a load up to an octave away, and beyond that the one of the profile.
"""

from collections.abc import Mapping
from dataclasses import replace
import math
from typing import NamedTuple

from controller.core.learning.normal import Distribution, Normal
from controller.core.learning.relation import Relation
from controller.core.model import IndicatorName
from controller.core.settings import IndicatorSpec, LoadBin

__all__ = ("LearnedIndicator", "LearnedLoad", "State")

_PER_OCTAVE = 2
_REACH = _PER_OCTAVE
_MAX_LOADS = 12
_FURTHEST_LOAD = 200
# The learned sweet point lies within this factor of the one in the profile.
_BOUND = 4.0
# Where the profile has none: at least this many resolutions, so that values which are zero without
# best-effort work do not become a demand for zero.
_LEAST_RESOLUTIONS = 10.0
_MAX_LOST = 0.99

_WAITS = (
    IndicatorName.RUNQ_P50,
    IndicatorName.RUNQ_P95,
    IndicatorName.RUNQ_P99,
    IndicatorName.RUNQ_DELAY_P99,
)
# Pressure has no load, so all of its values are those of load 0.
_WITHOUT_LOAD = (IndicatorName.PSI_CPU, IndicatorName.PSI_MEMORY, IndicatorName.PSI_IO)
_SHARES = (IndicatorName.WAIT_RATIO, *_WITHOUT_LOAD)


class LearnedLoad(NamedTuple):
    """What is known at one load: its number, and the state of its ``Normal``."""

    load: int
    windows: int
    point: float | None
    is_sure: bool
    halves: tuple[tuple[tuple[int, float], ...], tuple[tuple[int, float], ...]]


class LearnedIndicator(NamedTuple):
    """What is known about an indicator of a service, in plain types, to be kept across restarts.

    It holds for one ``image`` of the service and one ``cpu_model``; an empty text: not known.
    Values are logarithms to the base ``tolerance``. ``sums``, ``margin`` and ``kept`` are the state
    of the ``Relation``.
    """

    service: str
    indicator: IndicatorName
    cpu_model: str
    image: str
    tolerance: float
    loads: tuple[LearnedLoad, ...] = ()
    sums: tuple[float, ...] = ()
    margin: float = 0.0
    kept: tuple[tuple[int, float], ...] = ()

    @property
    def is_sane(self) -> bool:
        """Whether all numbers are finite and in range: a damaged file must not lead to a crash."""
        numbers = (self.tolerance, *self.sums, self.margin, *(c for _, c in self.kept))
        points = [each.point for each in self.loads if each.point is not None]
        counts = [count for each in self.loads for half in each.halves for _, count in half]
        return (
            all(map(math.isfinite, (*numbers, *points, *counts)))
            and self.tolerance > 0
            and self.tolerance != 1
            and len(self.loads) <= _MAX_LOADS
            and all(each.windows >= 0 for each in self.loads)
            and all(each.point is not None or not each.is_sure for each in self.loads)
        )


def load_number(load: float) -> int:
    """Return the number of the half octave of *load*; 0 where the indicator has no load."""
    if load <= 0:
        return 0
    return max(-_FURTHEST_LOAD, min(_FURTHEST_LOAD, math.floor(_PER_OCTAVE * math.log2(load))))


def _least_load(number: int) -> float:
    return float(2.0 ** (number / _PER_OCTAVE))


class State:
    """What is learned about one indicator of one service.

    ``loads`` are the normal values by the number of the load, ``relation`` is that to the service's
    own latency. The others: see ``LearnedIndicator``.
    """

    __slots__ = ("_scale", "cpu_model", "image", "loads", "relation", "tolerance")

    def __init__(self, cpu_model: str, image: str, tolerance: float) -> None:
        self.cpu_model = cpu_model
        self.image = image
        self.tolerance = tolerance
        self._scale = math.log(tolerance)
        self.loads: dict[int, Normal] = {}
        self.relation = Relation()

    @classmethod
    def restored(cls, past: LearnedIndicator) -> "State":
        """Return the state that *past* describes."""
        state = cls(past.cpu_model, past.image, past.tolerance)
        for each in past.loads:
            first, second = (Distribution(half) for half in each.halves)
            state.loads[each.load] = Normal((first, second), each.windows, each.point, each.is_sure)
        state.relation = Relation(past.sums, past.margin, Distribution(past.kept))
        return state

    def record(self, service: str, indicator: IndicatorName) -> LearnedIndicator:
        """Return the record from which an equal state is restored."""
        sums, margin, kept = self.relation.state
        return LearnedIndicator(
            service=service,
            indicator=indicator,
            cpu_model=self.cpu_model,
            image=self.image,
            tolerance=self.tolerance,
            loads=tuple(
                LearnedLoad(
                    number,
                    each.windows,
                    each.point,
                    each.is_sure,
                    (tuple(each.halves[0].bins.items()), tuple(each.halves[1].bins.items())),
                )
                for number, each in self.loads.items()
            ),
            sums=sums,
            margin=margin,
            kept=tuple(kept.bins.items()),
        )

    def holds_for(self, cpu_model: str, image: str, tolerance: float) -> bool:
        """Whether this still holds for a service; an *image* that is not known may be the same."""
        return (
            cpu_model == self.cpu_model
            and tolerance == self.tolerance
            and (image == self.image or not (image and self.image))
        )

    def add(self, value: float, load: float, resolution: float) -> None:
        """Take the value of an undisturbed window at *load*."""
        number = load_number(load)
        normal = self.loads.get(number)
        if normal is None:
            if len(self.loads) >= _MAX_LOADS:
                del self.loads[min(self.loads, key=lambda each: self.loads[each].windows)]
            normal = self.loads[number] = Normal()
        normal.add(math.log(max(value, resolution)) / self._scale)

    @property
    def sure(self) -> Mapping[int, float]:
        """The sure sweet points by number of the load, in the unit of the indicator."""
        return {
            number: math.exp(each.point * self._scale)
            for number, each in sorted(self.loads.items())
            if each.is_sure and each.point is not None
        }

    @property
    def windows(self) -> int:
        """The number of undisturbed windows, at all loads."""
        return sum(each.windows for each in self.loads.values())

    def normal_at(self, load: float) -> Normal | None:
        """Return what is known at *load*, else at the load with most windows."""
        found = self.loads.get(load_number(load))
        return found or max(self.loads.values(), key=lambda each: each.windows, default=None)

    def median_at(self, load: float) -> float | None:
        """Return the normal value at *load* or the nearest sure one; ``None``: none is sure."""
        number = load_number(load)
        sure = [each for each, normal in self.loads.items() if normal.is_sure]
        if not sure:
            return None
        nearest = min(sure, key=lambda each: (abs(each - number), each))
        return math.exp(self.loads[nearest].median * self._scale)

    def spec(self, configured: IndicatorSpec, own_ns: float | None) -> IndicatorSpec:
        """Return *configured* with the learned sweet points.

        *own_ns*: the service's own latency while it is undisturbed; ``None``: not known.
        """
        points = {
            number: _bounded(self._raised(configured, number, point, own_ns), configured)
            for number, point in self.sure.items()
            if (number == 0) or configured.name not in _WITHOUT_LOAD
        }
        if not points:
            return configured
        if configured.name in _WITHOUT_LOAD:
            return replace(configured, sweet_point=points[0], bins=())
        first, *others = _by_load(points, configured.sweet_point)
        return replace(configured, sweet_point=first.sweet_point, bins=tuple(others))

    def _raised(
        self, spec: IndicatorSpec, number: int, point: float, own_ns: float | None
    ) -> float:
        """Return the value that the service's objective allows, if that is above *point*."""
        allowed = self.relation.allowed
        if allowed is None or allowed <= 0 or own_ns is None:
            return point
        median = math.exp(self.loads[number].median * self._scale)
        return max(point, value_at(spec.name, allowed, median, own_ns))


def _bounded(point: float, configured: IndicatorSpec) -> float:
    if configured.sweet_point is None:
        return max(point, _LEAST_RESOLUTIONS * configured.resolution)
    low, high = configured.sweet_point / _BOUND, configured.sweet_point * _BOUND
    return min(high, max(low, 2 * configured.resolution, point))


def _by_load(points: Mapping[int, float], default: float | None) -> tuple[LoadBin, ...]:
    """Return the sweet points for all loads from *points*, those by number of the load.

    The first bin begins at load 0. *default* is for loads of which nothing is known; ``None``: the
    nearest point is for them.
    """
    bins: list[LoadBin] = []
    for number in range(min(points) - _REACH - 1, max(points) + _REACH + 2):
        nearest = min(points, key=lambda each: (abs(each - number), each))
        near = default is None or abs(nearest - number) <= _REACH
        point = points[nearest] if near else default
        if point is not None and (not bins or point != bins[-1].sweet_point):
            bins.append(LoadBin(_least_load(number) if bins else 0.0, point))
    return tuple(bins)


def inflation(name: IndicatorName, value: float, median: float, own_ns: float) -> float:
    """Return how much longer the service's work takes by this indicator, as a logarithm.

    *median* is the normal value, *own_ns* the normal latency of the service.
    """
    if name in _WAITS:
        return math.log1p(value / own_ns)
    if name in _SHARES:
        return -math.log1p(-min(value, _MAX_LOST))
    return math.log(max(value, median * 1e-3) / median)


def value_at(name: IndicatorName, x: float, median: float, own_ns: float) -> float:
    """Return the value of which ``inflation`` is *x*."""
    if name in _WAITS:
        return own_ns * math.expm1(x)
    if name in _SHARES:
        return -math.expm1(-x)
    return median * math.exp(x)
