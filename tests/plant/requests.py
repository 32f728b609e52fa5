# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of the service: their arrivals, and a queue in front of several workers."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

__all__ = ("Dispatch", "Load", "Queue", "Served", "arrivals")

_BIN_S = 0.01
# A client gives up after so long.
_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Load:
    """Requests per second at a time, and ``burst``: the factor of bursts of a second or two."""

    rate: Callable[[float], float]
    burst: float = 1.0


def arrivals(load: Load, length_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the times of all arrivals: Poisson, at the rate of *load*."""
    bins = round(length_s / _BIN_S)
    rates = np.array([load.rate(index * _BIN_S) for index in range(bins)])
    if load.burst != 1.0:
        begins, now = np.zeros(bins), 0.0
        while now < length_s:
            now += rng.exponential(5.0)
            end = now + rng.exponential(1.5)
            begins[int(now / _BIN_S) : int(end / _BIN_S)] = 1.0
            now = end
        rates *= np.where(begins > 0, load.burst, 1.0)
    counts = rng.poisson(rates * _BIN_S)
    starts = np.repeat(np.arange(bins) * _BIN_S, counts)
    return np.sort(starts + rng.uniform(0.0, _BIN_S, len(starts)))


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What a request meets in a step.

    ``slowdown`` is how much longer its work takes than alone. A worker that wakes up finds a CPU
    with best-effort work with the probability ``occupied``, and waits for a part of ``slice_s``
    with the probability ``blocked``, which is part of the former. ``dilation`` (1: none) is how
    much longer the work takes because the CPU is shared.
    """

    slowdown: float
    occupied: float = 0.0
    blocked: float = 0.0
    slice_s: float = 0.0
    dilation: float = 1.0


@dataclass(slots=True)
class Served:
    """What the workers did in one step.

    ``waits_s`` are all waits for a CPU, ``inflicted_s`` the sum of those for best-effort work;
    ``busy_s`` is the workers' time on a CPU.
    """

    busy_s: float = 0.0
    inflicted_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    started: int = 0


class Queue:
    """A queue in front of *workers* workers, first in, first out."""

    def __init__(
        self,
        times: NDArray[np.float64],
        work_s: NDArray[np.float64],
        workers: int,
        rng: np.random.Generator,
    ) -> None:
        count = len(times)
        self._times: list[float] = times.tolist()
        self._work: list[float] = work_s.tolist()
        # Preemption of an idle-class task: interrupt, switch, cold first-level caches.
        self._preempt: list[float] = (25e-6 * rng.lognormal(0.0, 0.6, count)).tolist()
        self._chance: list[float] = rng.uniform(0.0, 1.0, count).tolist()
        self._part: list[float] = rng.uniform(0.0, 1.0, count).tolist()
        self._next = 0
        self._free = [0.0] * workers
        self._ends: list[tuple[float, float]] = []
        self._latencies: dict[int, list[float]] = {}
        self._recent: deque[tuple[float, float]] = deque(maxlen=8192)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self._free)

    def p99(self, second: int) -> float | None:
        """Return the p99 in s of the requests that ended in *second*; ``None`` without any."""
        self._sort()
        found = self._latencies.get(second)
        return float(np.percentile(found, 99)) if found else None

    def recent_p99(self, now_s: float, window_s: float) -> float | None:
        """Return the p99 in s of the requests that ended in the last *window_s*."""
        self._sort()
        found = [took for finish, took in self._recent if now_s - window_s < finish <= now_s]
        return float(np.percentile(found, 99)) if found else None

    def _sort(self) -> None:
        for finish, took in self._ends:
            self._latencies.setdefault(int(finish), []).append(took)
        self._recent.extend(self._ends)
        self._ends.clear()

    def step(self, begin_s: float, end_s: float, at: Dispatch) -> Served:
        """Serve until *end_s*."""
        served = Served()
        free, times, work = self._free, self._times, self._work
        stretch, dilated = at.slowdown, at.dilation
        busy = sum(min(each, end_s) - begin_s for each in free if each > begin_s) / dilated
        index, total = self._next, len(times)
        record = self._ends.append
        while index < total:
            arrived, idle_since = times[index], free[0]
            asleep = arrived > idle_since
            start = arrived if asleep else idle_since
            if start >= end_s:
                break
            if start - arrived > _TIMEOUT_S:
                record((start, start - arrived))
                index += 1
                continue
            wait = self._wait(index, at, served) if asleep else 0.0
            run = work[index] * stretch
            finish = start + wait + run * dilated
            served.inflicted_s += run * (dilated - 1.0)
            heapreplace(free, finish)
            record((finish, finish - arrived))
            busy += max(0.0, min(finish, end_s) - start - wait) / dilated
            index += 1
        served.started = index - self._next
        served.busy_s = busy
        self._next = index
        return served

    def _wait(self, index: int, at: Dispatch, served: Served) -> float:
        chance = self._chance[index]
        if chance >= at.occupied:
            wait = 3e-6
        else:
            wait = self._preempt[index]
            if chance < at.blocked:
                wait += at.slice_s * self._part[index]
            served.inflicted_s += wait
        served.waits_s.append(wait)
        return wait
