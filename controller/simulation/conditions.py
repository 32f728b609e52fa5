# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the knobs and the hardware make of one step: who runs where, and how fast.

Arrays have a row per moment and a column per workload, services first. Where a quota lets work run
in bursts a step has 50 rows, otherwise one.
"""

from dataclasses import dataclass
import math

import numpy as np
import numpy.typing as npt

from controller.simulation.machine import (
    IDLE_WEIGHT,
    NORMAL_WEIGHT,
    Array,
    Machine,
    burst_coverage,
    cache_misses,
    mba_part,
    memory_latency,
    share_cpus,
    sibling_busy,
)
from controller.simulation.model import Character, Job, Service

__all__ = ("STEP_S", "Conditions", "Knobs", "Traits", "find_conditions")

STEP_S = 0.1
ROWS = 50
_TINY = 1e-9


@dataclass(slots=True)
class Knobs:
    """What a policy sets, an entry per job; ``all_*`` hold on the jobs' common parent.

    Quotas are in CPUs (inf: none) with periods in s. ``cpuset`` is the number of CPUs that jobs may
    run on. ``ways`` and ``mba`` (percent) are those of all jobs together.
    """

    quota: Array
    period: Array
    idle: npt.NDArray[np.bool_]
    weight: Array
    ways: int
    all_quota: float = math.inf
    all_period: float = 0.1
    cpuset: float = math.inf
    mba: float = 100.0

    @classmethod
    def initial(cls, jobs: int, machine: Machine) -> "Knobs":
        """Return knobs that limit nothing, for so many *jobs*."""
        return cls(
            quota=np.full(jobs, math.inf),
            period=np.full(jobs, 0.1),
            idle=np.zeros(jobs, dtype=bool),
            weight=np.full(jobs, NORMAL_WEIGHT),
            ways=machine.ways,
        )


class Traits:
    """The characters of all workloads as arrays, and the threads of the jobs."""

    def __init__(self, services: tuple[Service, ...], jobs: tuple[Job, ...]) -> None:
        characters = [each.character for each in services] + [each.character for each in jobs]
        self.services = len(services)
        self.threads = np.array([float(each.threads) for each in jobs])
        self.memory = _column(characters, "memory")
        self.bandwidth = _column(characters, "bandwidth")
        self.pressure = _column(characters, "pressure")
        self.working_set = _column(characters, "working_set")
        self.miss_cost = _column(characters, "miss_cost")
        # The speed of a workload (row) beside another one (column) on the same core.
        loss = np.outer(_column(characters, "smt_loss"), _column(characters, "smt"))
        self.beside = np.clip(1.0 - loss, 0.1, 1.0)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one step.

    ``edges`` are the rows' borders in s. ``wanted`` are the CPUs that each workload could use,
    ``running`` those that it uses. ``share`` is the part of its runnable time that a service runs,
    steal apart, ``unthrottled`` the part of each row that its own quota leaves it. ``slowdown`` is
    the factor that memory puts on each workload's time on a CPU, ``neighbours`` the probability
    that the other thread of its core runs each workload. ``blocked`` is the probability that a
    thread that wakes up has to wait for a slice of others, ``rounds`` the number of such slices at
    most, ``blamed`` the parts of the workloads in such a wait.
    """

    edges: Array
    wanted: Array
    running: Array
    share: Array
    unthrottled: Array
    slowdown: Array
    neighbours: Array
    blocked: Array
    rounds: Array
    blamed: Array


def find_conditions(
    machine: Machine,
    traits: Traits,
    knobs: Knobs,
    busy: Array,
    own_quota: Array,
    phase: Array,
    start_s: float,
    steal: float,
) -> Conditions:
    """Return the conditions of the step at *start_s*.

    *busy* is the mean number of workers that each service has work for, *own_quota* its own limit
    in CPUs. *phase* (0 to 1) is where in its period each job's quota is at time 0, and last that of
    the jobs' parent. *steal* is the part of the CPU time that the hypervisor takes.
    """
    quotas = np.isfinite(knobs.quota).any() or math.isfinite(knobs.all_quota)
    rows = ROWS if quotas or (busy > own_quota).any() else 1
    edges = np.linspace(start_s, start_s + STEP_S, rows + 1)
    count = traits.services
    unthrottled = _unthrottled(edges, busy, own_quota)
    weights = np.full(count + len(traits.threads), NORMAL_WEIGHT)
    weights[count:] = np.where(knobs.idle, IDLE_WEIGHT, knobs.weight)
    wanted = np.empty((rows, len(weights)))
    wanted[:, :count] = busy * unthrottled
    threads = traits.threads
    if threads.sum() > knobs.cpuset:
        threads = share_cpus(threads[None, :], weights[count:], knobs.cpuset)[0]
    wanted[:, count:] = threads
    if quotas:
        wanted[:, count:] *= _bursts(edges, wanted, weights, machine.cpus, knobs, phase, count)
    running = share_cpus(wanted, weights, machine.cpus)
    if quotas:
        _cap(running[:, count:], knobs)
    share = running[:, :count] / np.maximum(wanted[:, :count], _TINY)
    share = np.where(wanted[:, :count] > _TINY, np.minimum(1.0, share), 1.0)
    running *= 1.0 - steal
    normal = np.concatenate((np.ones(count, dtype=bool), ~knobs.idle))
    occupied = running[:, normal].sum(axis=1)
    # With a low weight a thread's deadline is late, so that others pass it after its slice.
    rivals = wanted[:, normal] @ (weights[normal] / NORMAL_WEIGHT)
    blamed = np.where(normal, running.mean(axis=0), 0.0)
    return Conditions(
        edges=edges,
        wanted=wanted,
        running=running,
        share=share,
        unthrottled=unthrottled,
        slowdown=_slowdown(running, traits, knobs, machine),
        neighbours=sibling_busy(running, machine),
        blocked=np.clip(occupied + 1.0 - machine.cpus * (1.0 - steal), 0.0, 1.0),
        rounds=np.maximum(1.0, rivals / machine.cpus),
        blamed=blamed / max(float(blamed.sum()), _TINY),
    )


def _unthrottled(edges: Array, busy: Array, own_quota: Array) -> Array:
    """Return which part of each row the services' own quotas, of one step's period, leave them."""
    part = np.minimum(1.0, own_quota / np.maximum(busy, _TINY))
    begin = (edges[:-1] - edges[0]) / STEP_S
    rows = np.diff(edges) / STEP_S
    return np.asarray(np.clip((part[None, :] - begin[:, None]) / rows[:, None], 0.0, 1.0))


def _bursts(
    edges: Array,
    wanted: Array,
    weights: Array,
    cpus: float,
    knobs: Knobs,
    phase: Array,
    count: int,
) -> Array:
    """Return which part of each row the quotas let each job run."""
    full = share_cpus(wanted.mean(axis=0, keepdims=True), weights, cpus)[0, count:]
    part = np.minimum(1.0, knobs.quota / np.maximum(full, _TINY))
    cover = burst_coverage(edges, part, knobs.period, phase[:-1] * knobs.period)
    total = float(np.minimum(full, knobs.quota).sum())
    if total > knobs.all_quota:
        together = np.array([knobs.all_quota / total])
        period = np.array([knobs.all_period])
        cover = cover * burst_coverage(edges, together, period, phase[-1:] * period)
    return np.asarray(cover)


def _cap(running: Array, knobs: Knobs) -> None:
    """Scale the jobs' use down to their quotas, which bursts that met an emptier node exceed."""
    used = np.maximum(running.mean(axis=0), _TINY)
    running *= np.minimum(1.0, knobs.quota / used)
    total = max(float(running.sum(axis=1).mean()), _TINY)
    running *= min(1.0, knobs.all_quota / total)


def _slowdown(running: Array, traits: Traits, knobs: Knobs, machine: Machine) -> Array:
    """Return the factor that latency of the memory and missing cache put on each workload."""
    is_job = np.arange(running.shape[1]) >= traits.services
    throttle = np.where(is_job & machine.resctrl, mba_part(knobs.mba), 1.0)
    offered = running @ (traits.bandwidth * throttle) / machine.bandwidth
    pressure = traits.pressure * running.mean(axis=0)
    ways = knobs.ways if machine.resctrl else machine.ways
    missing = cache_misses(pressure, traits.working_set, is_job, machine.ways, ways)
    latency = np.maximum(memory_latency(offered)[:, None], 1.0 / throttle)
    stall = latency * (1.0 + traits.miss_cost * missing)
    return np.asarray(1.0 - traits.memory + traits.memory * stall)


def _column(characters: list[Character], name: str) -> Array:
    return np.array([float(getattr(each, name)) for each in characters])
