# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Differences between the samples of two ticks, and rates of counters in CPUs.

Of 1,000 workloads most do not run within a tick, and the probes then return the same record as in
the tick before. ``SampleDiff`` finds the others by identity, and the components that follow
counters, such as ``CpuUse``, process only these. ``Averages`` are those of many rates, of which
few change in one tick.
"""

from collections.abc import Iterable
from itertools import compress
import math
from operator import is_not
from typing import Generic, TypeVar

from controller.core.limiters import smoothing
from controller.core.model import CgroupId, WorkloadSample

__all__ = (
    "LEAST_CPUS",
    "NEGLIGIBLE_CPUS",
    "SMOOTH_S",
    "Averages",
    "CpuUse",
    "SampleDiff",
    "increase",
    "rate",
    "traffic_bytes",
)


class SampleDiff:
    """The samples of the last tick, ``by_cgroup``, and their difference to those before.

    ``changed`` maps the cgroups whose sample differs to (old, new). ``added`` and ``removed`` are
    the cgroups that have a sample only now, or only before.
    """

    def __init__(self) -> None:
        self._all: tuple[WorkloadSample, ...] = ()
        self.by_cgroup: dict[CgroupId, WorkloadSample] = {}
        self.changed: dict[CgroupId, tuple[WorkloadSample, WorkloadSample]] = {}
        self.added: tuple[CgroupId, ...] = ()
        self.removed: tuple[CgroupId, ...] = ()

    def update(self, samples: Iterable[WorkloadSample]) -> None:
        """Take the samples of one tick, one per cgroup."""
        before, self._all = self._all, tuple(samples)
        pairs = zip(before, self._all, strict=False)
        others = compress(pairs, map(is_not, before, self._all))
        changed = [(old, new) for old, new in others if old != new]
        if len(before) != len(self._all) or any(old[0] != new[0] for old, new in changed):
            self._match_by_cgroup()
            return
        self.added = self.removed = ()
        self.changed = {pair[1].cgroup: pair for pair in changed}
        for cgroup, (_, new) in self.changed.items():
            self.by_cgroup[cgroup] = new

    def _match_by_cgroup(self) -> None:
        before, self.by_cgroup = self.by_cgroup, {each.cgroup: each for each in self._all}
        # No sets, because the order of the results must not depend on hash seeds.
        self.added = tuple(cgroup for cgroup in self.by_cgroup if cgroup not in before)
        self.removed = tuple(cgroup for cgroup in before if cgroup not in self.by_cgroup)
        self.changed = {
            cgroup: (old, new)
            for cgroup, new in self.by_cgroup.items()
            if (old := before.get(cgroup)) is not None and old is not new and old != new
        }


# Time constant of rates.
SMOOTH_S = 2.0
# A smoothed use below this counts as none.
LEAST_CPUS = 1e-9


def increase(old: int | None, new: int | None) -> int:
    """Return the growth of a counter; 0 where it was re-based or is not measured."""
    return 0 if old is None or new is None else max(0, new - old)


def rate(old: int | None, new: int | None, dt_ns: int) -> float | None:
    """Return the growth per ns of a counter within *dt_ns*; for one of ns that is in CPUs.

    ``None`` where it was re-based or is not measured.
    """
    if old is None or new is None or new < old or dt_ns <= 0:
        return None
    return (new - old) / dt_ns


def traffic_bytes(sample: WorkloadSample) -> int | None:
    """Return what a workload sent and received; ``None`` where it is not measured."""
    if sample.tx_bytes is None or sample.rx_bytes is None:
        return None
    return sample.tx_bytes + sample.rx_bytes


class CpuUse:
    """CPU use of all workloads in CPUs, smoothed over 2 s.

    ``cpus`` has every workload whose counter is known for two ticks, ``active`` those of them that
    used any CPU lately. A workload that does not run takes no time.
    """

    def __init__(self) -> None:
        # The rates of the last tick and of the one before, of workloads that run.
        self._rates: dict[CgroupId, tuple[float, float]] = {}
        # Workloads with a counter and without a rate yet.
        self._based: dict[CgroupId, None] = {}
        self._active: dict[CgroupId, None] = {}
        self.cpus: dict[CgroupId, float] = {}

    @property
    def active(self) -> dict[CgroupId, float]:
        """CPUs of the workloads that use any."""
        return {cgroup: self.cpus[cgroup] for cgroup in self._active}

    def lasting(self, cgroup: CgroupId) -> float:
        """Return the CPUs that a workload used at least in each of the last two ticks.

        Soon after a workload begins to run that is more than the smoothed use.
        """
        return min(self._rates.get(cgroup, (0.0, 0.0)))

    def update(self, samples: SampleDiff, dt_ns: int) -> None:
        """Take the samples of one tick, *dt_ns* after the last (0: no rate is computed).

        A counter that is new or shrank is a base now and has a rate from the next tick on.
        Workloads without a counter in this tick are removed.
        """
        for cgroup in samples.removed:
            self._remove(cgroup)
        if dt_ns > 0:
            weight = smoothing(dt_ns / 1e9, SMOOTH_S)
            self._decay_unchanged(samples, 1.0 - weight)
            for cgroup, (old, new) in samples.changed.items():
                self._update_rate(cgroup, old.oncpu_ns, new.oncpu_ns, dt_ns, weight)
        for cgroup in samples.added:
            if samples.by_cgroup[cgroup].oncpu_ns is not None:
                self._based[cgroup] = None

    def _decay_unchanged(self, samples: SampleDiff, keep: float) -> None:
        # Workloads whose sample did not change ran for 0 ns in this tick.
        changed = samples.changed
        for cgroup in [cgroup for cgroup in self._active if cgroup not in changed]:
            self._set(cgroup, keep * self.cpus[cgroup])
            self._rates.pop(cgroup, None)
        for cgroup in [cgroup for cgroup in self._based if cgroup not in changed]:
            self._set(cgroup, 0.0)

    def _update_rate(
        self, cgroup: CgroupId, last: int | None, count: int | None, dt_ns: int, weight: float
    ) -> None:
        if count is None:
            self._remove(cgroup)
        elif last is None:
            self._based[cgroup] = None
        elif count >= last:
            rate = (count - last) / dt_ns
            self._rates[cgroup] = self._rates.get(cgroup, (0.0, 0.0))[1], rate
            smooth = self.cpus.get(cgroup)
            # The first rate is not smoothed, so that a new culprit counts in full at once.
            self._set(cgroup, rate if smooth is None else smooth + weight * (rate - smooth))

    def _set(self, cgroup: CgroupId, cpus: float) -> None:
        self._based.pop(cgroup, None)
        if cpus >= LEAST_CPUS:
            self.cpus[cgroup] = cpus
            self._active[cgroup] = None
        else:
            self.cpus[cgroup] = 0.0
            self._active.pop(cgroup, None)

    def _remove(self, cgroup: CgroupId) -> None:
        self.cpus.pop(cgroup, None)
        self._active.pop(cgroup, None)
        self._based.pop(cgroup, None)
        self._rates.pop(cgroup, None)


Key = TypeVar("Key")

# Averages below this are dropped.
NEGLIGIBLE_CPUS = 1e-6
# A unit below this is given up: what is kept in it is nothing by now, and it would soon be zero.
_LEAST_UNIT = 1e-30


class Averages(Generic[Key]):
    """Averages over *time_s* by key, which decay when they are read and not in every tick.

    There may be as many pairs of victim and culprit as services times best-effort workloads, and
    few of them change in one tick. They are kept as multiples of a common unit, which decays.
    """

    __slots__ = ("_began_s", "_now_s", "_time_s", "_unit", "_values")

    def __init__(self, time_s: float) -> None:
        self._time_s = time_s
        self._values: dict[Key, float] = {}
        self._began_s = self._now_s = 0.0
        self._unit = 1.0

    def add(self, rates: Iterable[tuple[Key, float]], now_s: float, dt_s: float) -> None:
        """Average in the *rates* of a tick of *dt_s* that ends at *now_s*."""
        self._decay(now_s)
        values, unit, weight = self._values, self._unit, smoothing(dt_s, self._time_s)
        for key, rate in rates:
            values[key] = values.get(key, 0.0) + weight * rate / unit

    def read(self, now_s: float) -> dict[Key, float]:
        """Return the averages, without those that can be dropped."""
        self._decay(now_s)
        unit = self._unit
        least = NEGLIGIBLE_CPUS / unit
        return {key: value * unit for key, value in self._values.items() if value > least}

    def prune(self, now_s: float) -> None:
        """Drop the averages that can be dropped, and begin a new unit."""
        self._values = self.read(now_s)
        self._began_s, self._unit = now_s, 1.0

    def _decay(self, now_s: float) -> None:
        if now_s != self._now_s:
            self._now_s = now_s
            self._unit = math.exp((self._began_s - now_s) / self._time_s)
            if self._unit < _LEAST_UNIT:
                self._values, self._began_s, self._unit = {}, now_s, 1.0
