# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated node: services at request level beside jobs, under the knobs of a policy.

``advance`` takes one step of 100 ms. A policy sees the counters only and sets the knobs only.
docs/SIMULATION.md has the equations.
"""

from collections import deque
from dataclasses import dataclass
from itertools import islice
import math

import numpy as np
import numpy.typing as npt

from controller.core.indicators.measurement import BUCKETS, LOWER_NS
from controller.simulation.conditions import (
    ROWS,
    STEP_S,
    Conditions,
    Knobs,
    Traits,
    find_conditions,
)
from controller.simulation.machine import Array
from controller.simulation.model import Job, Scenario, Service
from controller.simulation.requests import RequestQueue, draw_arrivals

__all__ = ("Counters", "Plant")

# A wakeup on a CPU that is idle, or that runs SCHED_IDLE work, which is preempted at once: the cost
# of the switch and of leaving an idle state. Exponential with this mean.
_WAKE_S = 10e-6
# How long a virtual CPU stays away when the hypervisor takes it; exponential with this mean.
_STOLEN_S = 3e-3
_SLOWEST = 1e-6
_CACHE_LINE = 64
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
# Misses by references of a program that has all the cache that it uses.
_MISS_RATIO = 0.08
_KEEP_STEPS = round(60.0 / STEP_S)
_LOWER_S = np.array(LOWER_NS) / 1e9


class Counters:
    """Cumulative counters in seconds or as the name says; in the order services, jobs.

    ``run_delay`` is all waiting for a CPU. ``blame`` is the wait that each workload (column)
    inflicted on each service. ``work`` of a job is what it got done, in seconds alone on a core.
    ``overlap`` is the time that services ran beside a job on the same core, and all the time that
    they ran.
    """

    def __init__(self, services: int, jobs: int) -> None:
        both = services + jobs
        self.oncpu = np.zeros(both)
        self.cycles = np.zeros(both)
        self.instructions = np.zeros(both)
        self.memory_bytes = np.zeros(both)
        self.llc_misses = np.zeros(both)
        self.llc_references = np.zeros(both)
        self.run_delay = np.zeros(both)
        self.inflicted = np.zeros(services)
        self.blame = np.zeros((services, both))
        self.unknown = np.zeros(services)
        self.throttled = np.zeros(services)
        self.packets = np.zeros(services)
        self.histogram = np.zeros((services, BUCKETS), dtype=np.int64)
        self.work = np.zeros(jobs)
        self.idle = 0.0
        self.steal = 0.0
        self.overlap = np.zeros(2)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The requests that arrive in one step: ``times``, ``work`` in s, and random numbers 0 to 1."""

    times: Array
    work: Array
    wake: Array
    neighbour: Array
    blocked: Array
    turn: Array


class _Requests:
    """All requests of a service, drawn in advance, so that every policy meets the same ones."""

    def __init__(
        self, service: Service, arrivals: Array, steps: int, random: np.random.Generator
    ) -> None:
        count = len(arrivals)
        sigma = math.sqrt(math.log(1.0 + service.work_cv**2))
        mu = math.log(service.work_s) - sigma**2 / 2
        work = random.lognormal(mu, sigma, count)
        self._columns = (arrivals, work, random.exponential(_WAKE_S, count))
        self._uniform = random.random((3, count))
        self._first = np.searchsorted(arrivals, np.arange(steps + 1) * STEP_S)

    def take(self, step: int) -> _Batch:
        """Return the requests that arrive in *step*."""
        part = slice(self._first[step], self._first[step + 1])
        columns = [each[part] for each in self._columns]
        return _Batch(*columns, *(each[part] for each in self._uniform))


class _Queue:
    """The state of one service."""

    def __init__(self, service: Service, requests: _Requests) -> None:
        self.service = service
        self.requests = requests
        self.queue = RequestQueue(service.workers)
        self.latencies: deque[Array] = deque(maxlen=_KEEP_STEPS)
        self.speed = 1.0  # of a worker that its quota lets run, in the last step
        self.left = 1.0  # speed that the other threads of the cores leave, in the last step
        self.runs = 1.0  # part of a busy worker's time in which it does not wait to run, likewise


class Plant:
    """A node of *scenario*; random numbers come from *seed* and do not depend on the policy."""

    def __init__(self, scenario: Scenario, seed: int, seconds: float) -> None:
        self.scenario = scenario
        self.machine = scenario.machine
        self.jobs = scenario.jobs_at(0.0)
        self.step = 0
        steps = math.ceil(seconds / STEP_S)
        self._random = np.random.default_rng((seed, 0))
        self._queues = []
        for index, service in enumerate(scenario.services, 1):
            random = np.random.default_rng((seed, index))
            times = np.arange(steps * 10, dtype=np.float64) * (STEP_S / 10)
            level = (service.load or scenario.load)(times, random)
            rate = service.rate * np.maximum(level, 0.0)
            arrivals = draw_arrivals(rate, STEP_S / 10, random)
            requests = _Requests(service, arrivals, steps, random)
            self._queues.append(_Queue(service, requests))
        self.knobs = Knobs.initial(len(self.jobs), self.machine)
        self._dice = self._random.random((ROWS + 1, len(self.jobs) + 1))
        self.counters = Counters(len(self._queues), len(self.jobs))
        self._traits: dict[tuple[Job, ...], Traits] = {}

    @property
    def time_s(self) -> float:
        """The present time."""
        return self.step * STEP_S

    def latencies(self, service: int, seconds: float) -> Array:
        """Return the latencies in s of the requests that *service* finished in the last *seconds*.

        At most a minute. A request that has been in the system for longer than the objective counts
        with its age, so that a service that answers nothing violates it.
        """
        each = self._queues[service]
        waiting = each.queue.ages()
        late = waiting[waiting > each.service.slo_s]
        steps = min(len(each.latencies), round(seconds / STEP_S))
        recent = islice(each.latencies, len(each.latencies) - steps, None)
        return np.concatenate((*recent, late))

    def p99_s(self, service: int, seconds: float) -> float | None:
        """Return the p99 of ``latencies``; ``None`` without requests."""
        latencies = self.latencies(service, seconds)
        if not len(latencies):
            return None
        rank = math.ceil(0.99 * len(latencies)) - 1
        return float(np.partition(latencies, rank)[rank])

    def advance(self) -> None:
        """Advance by one step of 100 ms."""
        start, scenario = self.time_s, self.scenario
        self.jobs = scenario.jobs_at(start)
        traits = self._traits.get(self.jobs)
        if traits is None:
            traits = self._traits[self.jobs] = Traits(scenario.services, self.jobs)
        batches = [each.requests.take(self.step) for each in self._queues]
        slow, steal = scenario.slow_at(start), scenario.steal_at(start)
        busy = [_busy(each, batch) for each, batch in zip(self._queues, batches, strict=True)]
        quotas = [each.quota_cpus or math.inf for each in scenario.services]
        conditions = find_conditions(
            self.machine,
            traits,
            self.knobs,
            np.array(busy),
            np.array(quotas),
            self._dice,
            start,
            steal,
        )
        conditions.slowdown[:, : len(batches)] *= slow
        for index, batch in enumerate(batches):
            self._serve(index, batch, conditions, traits, steal)
        self._work(conditions, traits, steal)
        self.step += 1
        # Other numbers in each step, as evenly spread as the first ones (golden ratio).
        self._dice[1:] = (self._dice[1:] + _GOLDEN) % 1.0

    def _serve(
        self, index: int, batch: _Batch, now: Conditions, traits: Traits, steal: float
    ) -> None:
        """Let service *index* serve requests for one step."""
        each, counters = self._queues[index], self.counters
        own = now.unthrottled[:, index]
        speed = now.share[:, index] * own * (1.0 - steal) / now.slowdown[:, index]
        speed = np.maximum(speed, _SLOWEST)
        row = np.searchsorted(now.edges, batch.times, side="right") - 1
        row = np.minimum(row, len(speed) - 1)
        # What runs beside a request on the other thread of its core, drawn once per request.
        chances = np.cumsum(now.near_service @ traits.kinds, axis=1)[row]
        left = np.append(traits.beside[index], 1.0)[
            (batch.neighbour[:, None] >= chances).sum(axis=1)
        ]
        waits = self._waits(batch, now, row, steal)
        delay = (batch.wake + waits.sum(axis=0)) * speed[row]
        work = batch.work / left
        before = each.queue.backlog_s
        each.latencies.append(each.queue.advance(now.edges, speed, batch.times, work + delay))
        served = before + float(work.sum()) - each.queue.backlog_s
        each.speed = float((now.share[:, index] * (1.0 - steal) / now.slowdown[:, index]).mean())
        if len(work):
            each.left = float(batch.work.sum() / work.sum())
            each.runs = float(work.sum() / (work + delay).sum())
        oncpu = self._count_work(index, max(0.0, served), now)
        self._count_waits(index, batch.wake, waits, oncpu, now)
        counters.packets[index] += 2 * len(each.latencies[-1])
        counters.throttled[index] += STEP_S * float((1.0 - own).mean())

    def _waits(
        self, batch: _Batch, now: Conditions, row: npt.NDArray[np.intp], steal: float
    ) -> Array:
        """Return how long each request's worker waits for a CPU: behind slices, for the host."""
        longest = now.longest_wait_s[row]
        slices = np.where(batch.blocked < now.blocked[row], batch.turn * longest, 0.0)
        away = -np.log1p(-batch.turn) * _STOLEN_S
        return np.stack((slices, np.where(batch.blocked > 1.0 - steal, away, 0.0)))

    def _count_work(self, index: int, served: float, now: Conditions) -> float:
        """Count and return the CPU time of *served* seconds of work at speed 1."""
        each, counters = self._queues[index], self.counters
        oncpu = served * float(now.slowdown[:, index].mean())
        work = served * each.left
        counters.oncpu[index] += oncpu
        counters.cycles[index] += oncpu * self.machine.hz
        counters.instructions[index] += work * self.machine.hz
        self._count_traffic(index, work * each.service.character.bandwidth, now)
        beside = float(now.near_service[:, len(self._queues) :].sum(axis=1).mean())
        counters.overlap += (oncpu * beside, oncpu)
        return oncpu

    def _count_traffic(self, which: int | slice, base: Array | float, now: Conditions) -> None:
        """Count the memory traffic of workloads that would move *base* bytes with all the cache."""
        counters = self.counters
        moved = base * now.traffic[which]
        counters.memory_bytes[which] += moved
        counters.llc_misses[which] += moved / _CACHE_LINE
        counters.llc_references[which] += base / _CACHE_LINE / _MISS_RATIO

    def _count_waits(
        self, index: int, wake: Array, waits: Array, oncpu: float, now: Conditions
    ) -> None:
        """Count the waits of workers that woke up, and of those that ran *oncpu* seconds."""
        counters, length = self.counters, self.machine.slice_s
        share = float(now.share[:, index].mean())
        preempted = oncpu * (1.0 / max(share, _SLOWEST) - 1.0)
        slices, stolen = float(waits[0].sum()), float(waits[1].sum())
        histogram = counters.histogram[index]
        np.add.at(histogram, _bucket(wake + waits.sum(axis=0)), 1)
        histogram[_bucket(length)] += int(preempted / length + self._random.random())
        blamed = now.blamed.copy()
        blamed[index] = 0.0  # the wait for its own threads is not inflicted
        blamed *= slices + preempted
        counters.run_delay[index] += float(wake.sum()) + slices + stolen + preempted
        counters.blame[index] += blamed
        counters.unknown[index] += stolen
        counters.inflicted[index] += float(blamed.sum()) + stolen

    def _work(self, now: Conditions, traits: Traits, steal: float) -> None:
        """Let the jobs work for one step, and count the machine's idle time."""
        counters, count = self.counters, len(self._queues)
        lost = now.near_job @ traits.kinds @ (1.0 - traits.beside[count:]).T
        speed = np.maximum(0.1, 1.0 - lost) / now.slowdown[:, count:]
        running = now.running[:, count:]
        used = running.mean(axis=0) * STEP_S
        work = (running * speed).mean(axis=0) * STEP_S
        counters.oncpu[count:] += used
        counters.cycles[count:] += used * self.machine.hz
        counters.instructions[count:] += work * self.machine.hz
        self._count_traffic(slice(count, None), work * traits.bandwidth[count:], now)
        counters.work += work
        waiting = np.maximum(0.0, now.wanted[:, count:] - running).mean(axis=0)
        counters.run_delay[count:] += waiting * STEP_S
        cpus = self.machine.cpus
        counters.steal += steal * cpus * STEP_S
        everything = float(now.running.sum(axis=1).mean())
        counters.idle += max(0.0, cpus * (1.0 - steal) - everything) * STEP_S


def _busy(each: _Queue, batch: _Batch) -> float:
    """Return how many workers run or could run in this step, on average, at the last one's speed.

    A worker that waits behind others' slices is not among them: a job runs in its place.
    """
    needed = each.queue.backlog_s + float(batch.work.sum()) / each.left / each.runs
    return min(float(each.service.workers), needed / each.speed / STEP_S) * each.runs


def _bucket(wait_s: Array | float) -> npt.NDArray[np.intp]:
    return np.asarray(np.searchsorted(_LOWER_S, wait_s, side="right") - 1)
