# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The node: one service and best-effort jobs on one machine, in steps of 10 ms."""

from collections.abc import Callable
from dataclasses import dataclass, field
import math

import numpy as np

from tests.plant.jobs import CLOCK_HZ, MIB, MISS_CYCLES, Job, Mix
from tests.plant.machine import (
    LINE_BYTES,
    Floats,
    Machine,
    busy_siblings,
    cache_shares,
    latency_factor,
    misses,
    share,
    throttle_factor,
)
from tests.plant.requests import Dispatch, Load, Queue, arrivals

__all__ = ("STEP_S", "Counters", "Knobs", "Node", "Service")

STEP_S = 0.01
# The cache fills and empties, and the memory controller answers, within these times.
_CACHE_S, _MEMORY_S = 0.15, 0.02
# The cache is computed once in so many steps.
_CACHE_STEPS = 4
# A slice of the scheduler on a machine of eight CPUs or more.
_SLICE_S = 0.003
# One wake-up of a service costs the best-effort work that it interrupts so much.
_INTERRUPTED_S = 10e-6


@dataclass(frozen=True)
class Service:
    """The service. ``sensitive`` multiplies what neighbours on the core and in memory do to it.

    ``own`` is the factor by which its own work is longer, at a time.
    """

    load: Load
    workers: int = 8
    work_s: float = 1.9e-3
    spread: float = 0.5
    sensitive: float = 1.25
    own: Callable[[float], float] = lambda now_s: 1.0
    weight: float = 100.0
    job_weight: float = 100.0
    working_set_bytes: float = 18 * MIB


# The service's code: CPI and misses as of ``jobs.Character``.
_CORE_CPI, _COLD, _WARM, _ACCESSES, _EXPOSED = 0.75, 0.012, 0.002, 0.016, 0.45
_PACKETS = 4
# What a hit counts beside a miss where the users of the cache compete for it.
_HIT = 0.1


@dataclass(slots=True)
class Knobs:
    """The settings in force; ``quotas`` are (seconds per period, period), ``None`` for no limit.

    ``limit_cpus`` is the quota of the parent of all jobs. ``region`` is the part of the cache and
    ``percent`` the MBA value of best-effort work.
    """

    quotas: list[tuple[float, float] | None]
    idle: list[bool]
    limit_cpus: float = math.inf
    region: float = 1.0
    percent: int = 100


@dataclass(slots=True)
class Counters:
    """Cumulative counters of all workloads, the service first; times are in s."""

    oncpu: Floats
    waited: Floats
    inflicted: Floats
    throttled: Floats
    cycles: Floats
    instructions: Floats
    misses: Floats
    accesses: Floats
    bytes: Floats
    blame: Floats  # of the service, by job
    unknown_s: float = 0.0
    system_s: float = 0.0
    idle_s: float = 0.0
    overlap_s: float = 0.0
    packets: int = 0
    waits: list[float] = field(default_factory=list)  # of the service, since they were taken

    @classmethod
    def zero(cls, jobs: int) -> "Counters":
        """Return counters of a service and *jobs*."""
        a, b, c, d, e, f, g, h, i = np.zeros((9, jobs + 1))
        return cls(a, b, c, d, e, f, g, h, i, blame=np.zeros(jobs))


class Node:
    """The state of the node; ``step`` advances it, and ``knobs`` may be changed in between."""

    def __init__(
        self, machine: Machine, service: Service, jobs: tuple[Job, ...], length_s: float, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        self.machine, self.service, self.jobs = machine, service, jobs
        times = arrivals(service.load, length_s, rng)
        work = service.work_s * rng.lognormal(-(service.spread**2) / 2, service.spread, len(times))
        own = service.own
        if len(times):
            work *= np.array([own(each) for each in times])
        self.queue = Queue(times, work, service.workers, rng)
        steps = round(length_s / STEP_S) + 1
        self._noise: list[float] = np.exp(rng.normal(0.0, 0.02, steps)).tolist()
        count = len(jobs)
        self.knobs = Knobs([None] * count, [False] * count)
        self.counters = Counters.zero(count)
        self.work = np.zeros(count)  # CPU seconds at the speed of each job alone
        self.now_s = 0.0
        self._index = 0
        self._threads = [float(each.threads) for each in jobs]
        self._tokens = [0.0] * count
        self._refill_s = [0.0] * count
        self._use = np.zeros(count)
        self._runnable = 0.0
        self._service_cpus = 0.0
        self._utilisation = 0.0
        self._service_mpi = _WARM
        self._mix: Mix = Mix(tuple(each.character(0.0) for each in jobs))
        self._sets = np.array([service.working_set_bytes, *self._mix.working_set])
        self._cached = self._sets * 0.0
        self._cached[0] = service.working_set_bytes
        self._alone_cpi = _CORE_CPI + _WARM * MISS_CYCLES * _EXPOSED

    def step(self) -> None:
        """Advance by ``STEP_S``."""
        self._characters()
        cpi, mpi, beside = self._slowdown()
        begin_s = self.now_s
        self._index += 1
        self.now_s = self._index * STEP_S
        at = self._dispatch(cpi)
        served = self.queue.step(begin_s, self.now_s, at)
        self._service_cpus = served.busy_s / STEP_S
        counters = self.counters
        counters.waits.extend(served.waits_s)
        counters.waited[0] += sum(served.waits_s)
        counters.inflicted[0] += served.inflicted_s
        counters.packets += _PACKETS * served.started
        counters.overlap_s += beside * served.busy_s
        total = float(self._use.sum())
        if total > 0:
            counters.blame += 0.97 * served.inflicted_s * self._use / total
            counters.unknown_s += 0.03 * served.inflicted_s
        self._count(0, served.busy_s, served.busy_s * CLOCK_HZ / cpi, mpi, _ACCESSES)
        self._batch(served.busy_s, served.started)

    def _characters(self) -> None:
        now = tuple(each.character(self.now_s + 1e-9) for each in self.jobs)
        if now != self._mix.characters:
            self._mix = Mix(now)
            self._sets = np.array([self.service.working_set_bytes, *self._mix.working_set])

    def _slowdown(self) -> tuple[float, float, float]:
        """Return the service's CPI, its misses per instruction, and how often it has a sibling."""
        batch = float(self._use.sum())
        beside = busy_siblings(self._service_cpus, batch, self.machine.cpus)
        pressure = float((self._mix.pressure * self._use).sum()) / batch if batch > 0 else 0.0
        missing = 1.0 - min(1.0, float(self._cached[0] / self._sets[0]))
        sensitive = self.service.sensitive
        mpi = _WARM + (_COLD - _WARM) * missing
        factor = latency_factor(self._utilisation)
        stall = mpi * MISS_CYCLES * factor * _EXPOSED
        extra = stall - _WARM * MISS_CYCLES * _EXPOSED + _CORE_CPI * pressure * beside
        cpi = self._alone_cpi + sensitive * extra
        self._service_mpi = mpi
        return cpi * self._noise[self._index], mpi, beside

    def _dispatch(self, cpi: float) -> Dispatch:
        slowdown = cpi / self._alone_cpi
        rest = self.machine.cpus - self._service_cpus - self.machine.system_cpus
        occupied = min(1.0, float(self._use.sum()) / rest) if rest > 0 else 1.0
        if all(self.knobs.idle):
            return Dispatch(slowdown, occupied)
        # Wake-ups look for an idle CPU first. A service that uses less than its share mostly
        # pre-empts, else it waits for the end of a slice.
        weights = [self.service.weight, *([self.service.job_weight] * len(self.jobs))]
        wants = [max(0.5, self._service_cpus), *self._threads]
        got = share(self.machine.cpus - self.machine.system_cpus, wants, weights)
        dilation = max(1.0, wants[0] / got[0])
        queued = max(1.0, self._runnable / rest) if rest > 0 else 1.0
        occupied **= 3
        blocked = occupied * (0.35 if dilation == 1.0 else 0.8)
        return Dispatch(slowdown, occupied, blocked, _SLICE_S * min(2.0, queued), dilation)

    def _batch(self, service_s: float, wakeups: int) -> None:
        """Divide what is left among the jobs, and count what they did with it."""
        machine, counters = self.machine, self.counters
        system_s = machine.system_cpus * STEP_S
        counters.system_s += system_s
        left_s = max(0.0, machine.cpus * STEP_S - system_s - service_s)
        allowed = [each / STEP_S for each in self._allowed()]
        wants = [min(each) for each in zip(self._threads, allowed, strict=True)]
        capacity = max(0.0, left_s - wakeups * _INTERRUPTED_S) / STEP_S
        use = share(min(capacity, self.knobs.limit_cpus), wants, [1.0] * len(wants))
        self._tokens = [max(0.0, t - u * STEP_S) for t, u in zip(self._tokens, use, strict=True)]
        # A group whose quota is used up has no runnable thread for the rest of the step.
        self._runnable = sum(wants)
        self._use = np.array(use)
        runnable = np.array(wants)
        waiting = (runnable - self._use) * STEP_S
        counters.waited[1:] += waiting
        counters.inflicted[1:] += waiting
        counters.throttled[1:] += (np.array(self._threads) - runnable) * STEP_S
        counters.idle_s += left_s - sum(use) * STEP_S
        self._memory(self._use, service_s)

    def _allowed(self) -> list[float]:
        """Refill the quotas whose period begins, and return the seconds that each job may run."""
        tokens = self._tokens
        for index, quota in enumerate(self.knobs.quotas):
            if quota is None:
                tokens[index] = math.inf
                self._refill_s[index] = self.now_s
                continue
            amount, period = quota
            tokens[index] = min(tokens[index], amount)
            while self._refill_s[index] <= self.now_s - STEP_S + 1e-9:
                tokens[index] = amount
                self._refill_s[index] += period
        return tokens

    def _memory(self, use: Floats, service_s: float) -> None:
        """Advance cache and memory, and count the jobs' instructions."""
        mix, knobs, machine = self._mix, self.knobs, self.machine
        mpi = misses(mix.cold, mix.warm, self._cached[1:], mix.working_set)
        total = float(use.sum()) + self._service_cpus
        # Threads of best-effort work have each other for siblings, which costs more than half.
        paired = min(1.0, 2.0 * max(0.0, total - machine.cpus / 2) / max(total, 1e-9))
        stall = mpi * MISS_CYCLES * latency_factor(self._utilisation) * mix.exposed
        delay = MISS_CYCLES * (throttle_factor(knobs.percent) - 1.0)
        stall += delay * mix.accesses * mix.exposed
        hertz = CLOCK_HZ / (mix.core_cpi * (1.0 + 0.45 * paired) + stall)
        done = use * STEP_S * hertz
        self._count(slice(1, None), use * STEP_S, done, mpi, mix.accesses)
        self.work += done / mix.alone_hz
        service_rate = service_s / STEP_S * CLOCK_HZ / self._alone_cpi
        rates = np.array([service_rate, *(use * hertz)])
        reads = rates * np.array([self._service_mpi, *mpi])
        self._utilisation += (STEP_S / (_MEMORY_S + STEP_S)) * (
            float(reads.sum()) * LINE_BYTES / machine.peak - self._utilisation
        )
        # Each miss brings a line in; a hit only makes a line young again, which protects it less.
        if self._index % _CACHE_STEPS:
            return
        touched = reads + _HIT * rates * np.array([_ACCESSES, *mix.accesses])
        target = cache_shares(machine.cache_bytes, knobs.region, touched, self._sets)
        self._cached += (1.0 - math.exp(-_CACHE_STEPS * STEP_S / _CACHE_S)) * (
            target - self._cached
        )

    def _count(
        self,
        place: int | slice,
        oncpu_s: float | Floats,
        done: float | Floats,
        mpi: float | Floats,
        accesses: float | Floats,
    ) -> None:
        counters = self.counters
        counters.oncpu[place] += oncpu_s
        counters.cycles[place] += np.multiply(oncpu_s, CLOCK_HZ)
        counters.instructions[place] += done
        counters.misses[place] += np.multiply(done, mpi)
        counters.accesses[place] += np.multiply(done, accesses)
        counters.bytes[place] += np.multiply(done, mpi) * LINE_BYTES
