# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is learned about one indicator of one service: state, records of it, and the sweet points.

The load of a workload is divided into half octaves, because what is normal changes with it: a busy
service handles several requests per wake-up, and queues behind itself. A load of which nothing is
known takes the sweet points of a load up to an octave away; beyond that the one for all loads, if
the values differ by little, else the one of the profile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
import math
from typing import NamedTuple

from controller.core.indicators.measurement import QUANTILES
from controller.core.learning.normal import LEAST_WINDOWS, Distribution, LearnedLoad, Normal
from controller.core.learning.objective import Margin, Relation
from controller.core.model import IndicatorName
from controller.core.settings import IndicatorSpec, LoadBin
from controller.core.units import NS_PER_SEC

__all__ = ("LearnedIndicator", "State")

_PER_OCTAVE = 2
_MAX_LOADS = 12
# Limits of the numbers in a record: of logarithms and numbers of loads, of sums and windows.
_FURTHEST, _MOST = 200, 1e9
# In records, the number of what is known at all loads.
_WHOLE = 1000
# The learned sweet point lies within this factor of the one in the profile.
_BOUND = 4.0
# Undisturbed time at a load that a sweet point needs.
_LEAST_NS = 60 * NS_PER_SEC

_WAITS = (*QUANTILES, IndicatorName.RUNQ_DELAY_P99)
_SHARES = (
    IndicatorName.WAIT_RATIO,
    IndicatorName.PSI_CPU,
    IndicatorName.PSI_MEMORY,
    IndicatorName.PSI_IO,
)


class LearnedIndicator(NamedTuple):
    """What is known about an indicator of a service, in plain types, to be kept across restarts.

    It holds for the ``image`` of the service (several with a space between them) and one
    ``cpu_model``; an empty text: not known. Values are logarithms to the base ``tolerance``.
    ``sums`` and ``kept`` are the state of the ``Relation`` to ``objective``, ``margin`` is that of
    the ``Margin``, empty where there is none.
    """

    service: str
    indicator: IndicatorName
    cpu_model: str
    image: str
    tolerance: float
    loads: tuple[LearnedLoad, ...] = ()
    sums: tuple[float, ...] = ()
    kept: tuple[tuple[int, float], ...] = ()
    margin: tuple[float, ...] = ()
    objective: float | None = None

    @property
    def is_sane(self) -> bool:
        """Whether all numbers are finite and in range: a damaged file must not lead to a crash."""
        numbers = (self.tolerance, self.objective or 0.0, *self.margin, *(c for _, c in self.kept))
        counts = [count for each in self.loads for half in each.halves for _, count in half]
        return (
            all(map(math.isfinite, (*numbers, *counts)))
            and self.tolerance > 1
            and all(abs(each) <= _MOST for each in self.sums)
            and len(self.loads) <= _MAX_LOADS + 1
            and all(self._is_sane_at(each) for each in self.loads)
        )

    def _is_sane_at(self, load: LearnedLoad) -> bool:
        points = [point for point in (load.middle, load.high) if point is not None]
        return (
            (abs(load.load) <= _FURTHEST or load.load == _WHOLE)
            and 0 <= load.windows <= _MOST
            and all(abs(each) * math.log(self.tolerance) <= _FURTHEST for each in points)
            and (len(points) == 2 or not load.is_sure)
        )


def load_number(load: float) -> int:
    """Return the number of the half octave of *load*."""
    if load <= 0:
        return -_FURTHEST
    return max(-_FURTHEST, min(_FURTHEST, math.floor(_PER_OCTAVE * math.log2(load))))


@dataclass(slots=True, eq=False)
class State:
    """What is learned about one indicator of one service.

    ``loads`` are the normal values by the number of the load, ``whole`` those at all loads,
    ``relation`` is that to the service's own latency, ``margin`` that of the service's own figure
    to its objective; ``None``: it has none. ``taken_ns`` is the time of the last value, as far as
    the caller sets it. The others: see ``LearnedIndicator``.
    """

    cpu_model: str
    image: str
    tolerance: float
    loads: dict[int, Normal] = field(default_factory=dict)
    whole: Normal = field(default_factory=Normal)
    relation: Relation = field(default_factory=Relation)
    margin: Margin | None = None
    objective: float | None = None
    taken_ns: int = 0
    _scale: float = field(init=False)

    def __post_init__(self) -> None:
        self._scale = math.log(self.tolerance)

    @classmethod
    def restored(cls, past: LearnedIndicator) -> "State":
        """Return the state that *past* describes."""
        state = cls(past.cpu_model, past.image, past.tolerance)
        state.loads = {each.load: Normal(each) for each in past.loads}
        state.whole = state.loads.pop(_WHOLE, state.whole)
        state.relation = Relation(past.sums, Distribution(past.kept))
        state.objective = past.objective
        if len(past.margin) == len(Margin().state):
            state.margin = Margin(*past.margin)
        return state

    def record(self, service: str, indicator: IndicatorName) -> LearnedIndicator:
        """Return the record from which an equal state is restored."""
        sums, kept = self.relation.state
        return LearnedIndicator(
            service=service,
            indicator=indicator,
            cpu_model=self.cpu_model,
            image=self.image,
            tolerance=self.tolerance,
            loads=tuple(
                each.record(number) for number, each in {_WHOLE: self.whole, **self.loads}.items()
            ),
            sums=sums,
            kept=tuple(kept.bins.items()),
            margin=() if self.margin is None else self.margin.state,
            objective=self.objective,
        )

    def keep_for(self, cpu_model: str, image: str, tolerance: float) -> bool:
        """Whether this holds for a service; if so, note the *image* and the *cpu_model*.

        What is not known may be the same. While a service has several images, as in a rollout, it
        holds if they are among those of this state, or those among them; it is for the images that
        both have then.
        """
        known, present = set(self.image.split()), set(image.split())
        if (
            tolerance != self.tolerance
            or (cpu_model and self.cpu_model and cpu_model != self.cpu_model)
            or not (known <= present or present <= known)
        ):
            return False
        self.cpu_model = cpu_model or self.cpu_model
        self.image = " ".join(sorted(known & present or known | present))
        return True

    def relate_to(self, objective: float | None) -> None:
        """Forget the relation to another *objective*, unless there is none now."""
        if objective is not None and objective != self.objective:
            self.relation = Relation()
            self.objective = objective

    @property
    def windows(self) -> int:
        """The number of undisturbed windows."""
        return self.whole.windows

    @property
    def is_sure(self) -> bool:
        """Whether the sweet point of at least one load is sure."""
        return self._holds_everywhere or any(each.is_sure for each in self.loads.values())

    @property
    def _holds_everywhere(self) -> bool:
        """Whether the values at all loads together give a sweet point.

        They do if they differ by one tolerance at most.
        """
        return self.whole.is_sure and (not self.loads or self.whole.spread <= 1.0)

    def add(self, value: float, load: float, resolution: float, window_ns: int) -> None:
        """Take the value of an undisturbed window at *load*; 0: the indicator has no load."""
        least = max(LEAST_WINDOWS, _LEAST_NS // window_ns)
        scaled = math.log(max(value, resolution)) / self._scale
        self.whole.add(scaled, least)
        if load > 0:
            self._at(load_number(load)).add(scaled, least)

    def _at(self, number: int) -> Normal:
        known = self.loads.pop(number, None)
        if known is None and len(self.loads) >= _MAX_LOADS:
            del self.loads[next(iter(self.loads))]  # the one that was not seen for the longest time
        return self.loads.setdefault(number, known or Normal())

    def normal_at(self, load: float) -> Normal:
        """Return what is known at *load*: there, at the nearest sure load, or at all loads."""
        number = load_number(load)
        here = self.loads.get(number, self.whole)
        if here.is_sure or self._holds_everywhere:
            return here if here.is_sure else self.whole
        sure = [each for each, normal in self.loads.items() if normal.is_sure]
        nearest = min(sure, key=lambda each: (abs(each - number), each), default=None)
        return here if nearest is None else self.loads[nearest]

    def median_at(self, load: float) -> float | None:
        """Return the normal value at *load*; ``None``: it is not sure."""
        normal = self.normal_at(load)
        if not normal.is_sure or normal.middle is None:
            return None
        return math.exp(normal.middle * self._scale)

    def spec(self, configured: IndicatorSpec, own_ns: float | None) -> IndicatorSpec:
        """Return *configured* with the learned sweet points.

        *own_ns*: the service's own latency while it is undisturbed; ``None``: not known.
        """
        if not self.is_sure:
            return configured
        points = {
            number: self._sweet_point(configured, normal, own_ns)
            for number, normal in sorted(self.loads.items())
            if normal.is_sure
        }
        default = configured.sweet_point
        if self._holds_everywhere:
            default = self._sweet_point(configured, self.whole, own_ns)
        if not points:
            return replace(configured, sweet_point=default, bins=())
        first, *others = _by_load(points, default)
        return replace(configured, sweet_point=first.sweet_point, bins=tuple(others))

    def _sweet_point(self, spec: IndicatorSpec, normal: Normal, own_ns: float | None) -> float:
        """Return what the objective allows or, if that is not known, what the profile allows.

        It is never below the 95th percentile of what is normal.
        """
        allowed, above = self.relation.allowed, 0.0
        if allowed is None or own_ns is None:
            allowed, above = self.relation.step, math.log1p(spec.allow) / abs(self._scale)
        point = math.exp(normal.sweet_point(above) * self._scale)
        if allowed is not None and allowed > 0 and own_ns is not None:
            median = math.exp((normal.middle or 0.0) * self._scale)
            point = max(point, value_at(spec.name, allowed, median, own_ns))
        return _bounded(point, spec)


def _bounded(point: float, configured: IndicatorSpec) -> float:
    if configured.name in _SHARES:
        point = min(1.0, point)
    if configured.sweet_point is None:
        # Values that are zero without best-effort work do not become a demand for zero.
        return max(point, 10 * configured.resolution)
    low, high = configured.sweet_point / _BOUND, configured.sweet_point * _BOUND
    return min(high, max(low, configured.least, 2 * configured.resolution, point))


def _by_load(points: Mapping[int, float], default: float | None) -> tuple[LoadBin, ...]:
    """Return the sweet points for all loads from *points*, those by number of the load.

    The first bin begins at load 0. *default* is for loads of which nothing is known; ``None``: the
    nearest point is for them.
    """
    bins: list[LoadBin] = []
    for number in range(min(points) - _PER_OCTAVE - 1, max(points) + _PER_OCTAVE + 2):
        nearest = min(points, key=lambda each: (abs(each - number), each))
        near = default is None or abs(nearest - number) <= _PER_OCTAVE
        point = points[nearest] if near else default
        if point is not None and (not bins or point != bins[-1].sweet_point):
            bins.append(LoadBin(2.0 ** (number / _PER_OCTAVE) if bins else 0.0, point))
    return tuple(bins)


def inflation(name: IndicatorName, value: float, median: float, own_ns: float) -> float:
    """Return how much longer the service's work takes by this indicator, as a logarithm.

    *median* is the normal value, *own_ns* the normal latency of the service.
    """
    if name in _WAITS:
        return math.log1p(value / own_ns)
    if name in _SHARES:
        return -math.log1p(-min(value, 0.99))
    return math.log(max(value, median * 1e-3) / median)


def value_at(name: IndicatorName, x: float, median: float, own_ns: float) -> float:
    """Return the value of which ``inflation`` is *x*."""
    if name in _WAITS:
        return own_ns * math.expm1(x)
    if name in _SHARES:
        return -math.expm1(-x)
    return median * math.exp(x)
