# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is new in the samples of a tick.

Of a thousand workloads most stand still, and the probes hand out the very same record for those
as in the tick before. Whoever follows counters looks at the others only.

CPU use of every workload, in CPUs, smoothed over two seconds.

Who stands still costs nothing.
"""

from collections.abc import Iterable
from itertools import compress
import math
from operator import is_not

from controller.core.model import CgroupId, WorkloadSample

__all__ = (
    "CounterRate",
    "CpuUse",
    "SampleDiff",
    "smoothing",
)


class SampleDiff:
    """The samples of the last tick, ``by_cgroup``, and how they differ from those before.

    ``moved`` is (before, now) of those of which anything was counted, ``came`` and ``gone`` who
    was not there before and who is not there any more.
    """

    __slots__ = ("_all", "added", "by_cgroup", "changed", "removed")

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
            self._look_up()
            return
        self.added = self.removed = ()
        self.changed = {pair[1].cgroup: pair for pair in changed}
        for cgroup, (_, new) in self.changed.items():
            self.by_cgroup[cgroup] = new

    def _look_up(self) -> None:
        before, self.by_cgroup = self.by_cgroup, {each.cgroup: each for each in self._all}
        # No sets: the order of what follows must not depend on hash seeds.
        self.added = tuple(cgroup for cgroup in self.by_cgroup if cgroup not in before)
        self.removed = tuple(cgroup for cgroup in before if cgroup not in self.by_cgroup)
        self.changed = {
            cgroup: (old, new)
            for cgroup, new in self.by_cgroup.items()
            if (old := before.get(cgroup)) is not None and old is not new and old != new
        }


_SMOOTH_S = 2.0
# Who used less than this lately used nothing.
_LEAST_CPUS = 1e-9


def smoothing(dt_s: float, time_constant_s: float) -> float:
    """Return the weight of a new value in a low-pass with *time_constant_s*."""
    return 1.0 - math.exp(-dt_s / time_constant_s) if time_constant_s > 0 else 1.0


class CpuUse:
    """Follows the on-CPU counters of all workloads.

    ``cpus`` is of everybody whose counter is known for two ticks, ``running`` those of them who
    used any CPU lately.
    """

    __slots__ = ("_based", "_running", "cpus")

    def __init__(self) -> None:
        # Who has a counter and no rate yet.
        self._based: dict[CgroupId, None] = {}
        self._running: dict[CgroupId, None] = {}
        self.cpus: dict[CgroupId, float] = {}

    @property
    def active(self) -> dict[CgroupId, float]:
        """CPUs of those who use any."""
        return {cgroup: self.cpus[cgroup] for cgroup in self._running}

    def update(self, samples: SampleDiff, dt_ns: int) -> None:
        """Take the samples of one tick; *dt_ns* since the last one (0: counters are only based).

        A counter that shrank, or that is new, is based now and rated from the next tick on.
        Workloads without a counter in this tick are forgotten.
        """
        for cgroup in samples.removed:
            self._forget(cgroup)
        if dt_ns > 0:
            weight = smoothing(dt_ns / 1e9, _SMOOTH_S)
            self._keep_still(samples, 1.0 - weight)
            for cgroup, (old, new) in samples.changed.items():
                self._rate(cgroup, old.oncpu_ns, new.oncpu_ns, dt_ns, weight)
        for cgroup in samples.added:
            if samples.by_cgroup[cgroup].oncpu_ns is not None:
                self._based[cgroup] = None

    def _keep_still(self, samples: SampleDiff, keep: float) -> None:
        # Of all of whom nothing was counted in this tick.
        moved = samples.changed
        for cgroup in [cgroup for cgroup in self._running if cgroup not in moved]:
            self._set(cgroup, keep * self.cpus[cgroup])
        for cgroup in [cgroup for cgroup in self._based if cgroup not in moved]:
            self._set(cgroup, 0.0)

    def _rate(
        self, cgroup: CgroupId, last: int | None, count: int | None, dt_ns: int, weight: float
    ) -> None:
        if count is None:
            self._forget(cgroup)
        elif last is None:
            self._based[cgroup] = None
        elif count >= last:
            rate = (count - last) / dt_ns
            smooth = self.cpus.get(cgroup)
            # The first rate is taken as it is: a culprit must be seen at its size at once.
            self._set(cgroup, rate if smooth is None else smooth + weight * (rate - smooth))

    def _set(self, cgroup: CgroupId, cpus: float) -> None:
        self._based.pop(cgroup, None)
        if cpus >= _LEAST_CPUS:
            self.cpus[cgroup] = cpus
            self._running[cgroup] = None
        else:
            self.cpus[cgroup] = 0.0
            self._running.pop(cgroup, None)

    def _forget(self, cgroup: CgroupId) -> None:
        self.cpus.pop(cgroup, None)
        self._running.pop(cgroup, None)
        self._based.pop(cgroup, None)


class CounterRate:
    """Rate of one cumulative ns counter, in CPUs, unsmoothed; ``None`` while unknown."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: int | None = None

    def update(self, count: int | None, dt_ns: int) -> float | None:
        """Return the rate since the last call; ``None`` at first, after a gap or a re-base."""
        last, self._last = self._last, count
        if count is None or last is None or count < last or dt_ns <= 0:
            return None
        return (count - last) / dt_ns
