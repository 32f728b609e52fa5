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
    KUBELET_WEIGHT,
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

__all__ = ("ROWS", "STEP_S", "Conditions", "Knobs", "Traits", "find_conditions")

STEP_S = 0.1
ROWS = 50
_TINY = 1e-9


@dataclass(slots=True)
class Knobs:
    """What a policy sets, an entry per job; ``all_*`` hold on the jobs' common parent.

    Quotas are in CPUs (inf: none) with periods in s. ``cpuset`` is the number of CPUs that jobs may
    run on. ``ways`` and ``mba`` (percent) are those of all jobs together. Jobs in ``evicted`` do
    not run. ``cookie``: the jobs carry a core-scheduling cookie, and the services do not.
    """

    quota: Array
    period: Array
    idle: npt.NDArray[np.bool_]
    weight: Array
    evicted: npt.NDArray[np.bool_]
    ways: int
    all_quota: float = math.inf
    all_period: float = 0.1
    cpuset: float = math.inf
    cookie: bool = False
    mba: float = 100.0

    @classmethod
    def initial(cls, jobs: int, machine: Machine) -> "Knobs":
        """Return the knobs of so many *jobs* as kubelet leaves them: no limit, a low weight.

        The weight is that of their parent, the besteffort cgroup, which they share.
        """
        return cls(
            quota=np.full(jobs, math.inf),
            period=np.full(jobs, 0.1),
            idle=np.zeros(jobs, dtype=bool),
            weight=np.full(jobs, KUBELET_WEIGHT / max(1, jobs)),
            evicted=np.zeros(jobs, dtype=bool),
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
        # The workloads as kinds, of equal characters: a thousand jobs are a few kinds.
        kinds = list(dict.fromkeys(characters))
        self.kinds = np.zeros((len(characters), len(kinds)))
        self.kinds[np.arange(len(characters)), [kinds.index(each) for each in characters]] = 1.0
        # The speed of a workload (row) beside one of a kind (column) on the same core.
        loss = np.outer(_column(characters, "smt_loss"), _column(kinds, "smt"))
        self.beside = np.clip(1.0 - loss, 0.1, 1.0)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one step.

    ``edges`` are the rows' borders in s. ``wanted`` are the CPUs that each workload could use,
    ``running`` those that it uses. ``share`` is the part of its runnable time that a service runs,
    steal apart, ``unthrottled`` the part of each row that its own quota leaves it. ``slowdown`` is
    the factor that memory puts on each workload's time on a CPU, ``traffic`` the factor
    on what each moves to and from memory per second of work. ``near_service`` and ``near_job`` are
    the probabilities that the thread beside one of theirs runs each workload. ``blocked`` is the
    probability that a thread that wakes up has to wait for others, ``longest_wait_s`` how long at
    most, ``blamed`` the parts of the workloads in such a wait.
    """

    edges: Array
    wanted: Array
    running: Array
    share: Array
    unthrottled: Array
    slowdown: Array
    traffic: Array
    near_service: Array
    near_job: Array
    blocked: Array
    longest_wait_s: Array
    blamed: Array


def find_conditions(
    machine: Machine,
    traits: Traits,
    knobs: Knobs,
    busy: Array,
    own_quota: Array,
    dice: Array,
    start_s: float,
    steal: float,
) -> Conditions:
    """Return the conditions of the step at *start_s*.

    *busy* is the mean number of workers that each service has work for, *own_quota* its own limit
    in CPUs. *dice* (rows + 1, jobs + 1) are random numbers from 0 to 1: the first row is where in
    its period each quota is at time 0, the last column is for the jobs' parent. *steal* is the part
    of the CPU time that the hypervisor takes.
    """
    quotas = np.isfinite(knobs.quota).any() or math.isfinite(knobs.all_quota)
    rows = ROWS if quotas or (busy > own_quota).any() else 1
    edges = np.linspace(start_s, start_s + STEP_S, rows + 1)
    count = traits.services
    unthrottled = _unthrottled(edges, busy, own_quota)
    weights = np.full(count + len(traits.threads), NORMAL_WEIGHT)
    # cpu.idle is set on the jobs' parent where all of them are idle, so that they share its weight.
    weights[count:] = np.where(knobs.idle, IDLE_WEIGHT / max(1, knobs.idle.sum()), knobs.weight)
    wanted = np.empty((rows, len(weights)))
    wanted[:, :count] = busy * unthrottled
    threads = np.where(knobs.evicted, 0.0, traits.threads)
    cpuset = knobs.cpuset
    if knobs.cookie:
        # A core that runs a service runs no job; services spread over idle cores first.
        free = max(0.0, machine.cores - float(wanted[:, :count].sum(axis=1).mean()))
        cpuset = min(cpuset, machine.threads_per_core * free)
    if threads.sum() > cpuset:
        threads = share_cpus(threads[None, :], weights[count:], cpuset)[0]
    wanted[:, count:] = threads
    on, longest = np.ones((rows, len(threads))), math.inf
    if quotas:
        cover, on, longest = _bursts(edges, wanted, weights, machine.cpus, knobs, dice, count)
        wanted[:, count:] *= cover
    running = share_cpus(wanted, weights, machine.cpus)
    if quotas:
        _cap(running[:, count:], knobs)
    share = running[:, :count] / np.maximum(wanted[:, :count], _TINY)
    share = np.where(wanted[:, :count] > _TINY, np.minimum(1.0, share), 1.0)
    running *= 1.0 - steal
    normal = np.concatenate((np.ones(count, dtype=bool), ~knobs.idle))
    runnable = np.concatenate((wanted[:, :count], threads * on), axis=1)[:, normal]
    # With a low weight a thread's deadline is late, so that others pass it after its slice.
    rivals = runnable @ (weights[normal] / NORMAL_WEIGHT)
    behind = np.maximum(1.0, rivals / machine.cpus) * machine.slice_s
    blamed = np.where(normal, running.mean(axis=0), 0.0)
    slowdown, traffic = _memory(running, traits, knobs, machine)
    near_service, near_job = sibling_busy(running, count, cpuset, machine)
    return Conditions(
        edges=edges,
        wanted=wanted,
        running=running,
        share=share,
        unthrottled=unthrottled,
        slowdown=slowdown,
        traffic=traffic,
        near_service=near_service,
        near_job=near_job,
        blocked=np.clip(runnable.sum(axis=1) + 1.0 - machine.cpus, 0.0, 1.0),
        longest_wait_s=np.minimum(behind, longest),
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
    dice: Array,
    count: int,
) -> tuple[Array, Array, float]:
    """Return what part of each row the quotas let each job run, and the longest burst in s.

    The second result is the same rounded to 0 or 1 at random (*dice*), because a thread that wakes
    up meets a job that runs or one that is throttled. Periods start at random moments.
    """
    phase, dice = dice[0], dice[1:]
    full = share_cpus(wanted.mean(axis=0, keepdims=True), weights, cpus)[0, count:]
    part = np.minimum(1.0, knobs.quota / np.maximum(full, _TINY))
    cover = burst_coverage(edges, part, knobs.period, phase[:-1] * knobs.period)
    on = dice[:, :-1] < cover
    bursts = np.where(part < 1.0, part * knobs.period, np.inf)[~knobs.idle]
    longest = float(bursts.max(initial=0.0))
    total = float(np.minimum(full, knobs.quota).sum())
    if total > knobs.all_quota:
        together = np.array([knobs.all_quota / total])
        period = np.array([knobs.all_period])
        whole = burst_coverage(edges, together, period, phase[-1:] * period)
        cover, on = cover * whole, on & (dice[:, -1:] < whole)
        longest = min(longest, float(together[0] * period[0]))
    return np.asarray(cover), on.astype(np.float64), longest


def _cap(running: Array, knobs: Knobs) -> None:
    """Scale the jobs' use down to their quotas, which bursts that met an emptier node exceed."""
    used = np.maximum(running.mean(axis=0), _TINY)
    running *= np.minimum(1.0, knobs.quota / used)
    total = max(float(running.sum(axis=1).mean()), _TINY)
    running *= min(1.0, knobs.all_quota / total)


def _memory(running: Array, traits: Traits, knobs: Knobs, machine: Machine) -> tuple[Array, Array]:
    """Return the factors of latency and missing cache on each workload's time and traffic."""
    is_job = np.arange(running.shape[1]) >= traits.services
    pressure = traits.pressure * running.mean(axis=0)
    ways = knobs.ways if machine.resctrl else machine.ways
    missing = cache_misses(pressure, traits.working_set, is_job, machine.ways, ways)
    traffic = 1.0 + traits.miss_cost * missing
    moved = traits.bandwidth * traffic
    most = machine.cpu_bandwidth * (mba_part(knobs.mba) if machine.resctrl else 1.0)
    least = np.where(is_job, moved / most, 1.0)
    memory = traits.memory * traffic
    latency = memory_latency(running * moved, memory, least, machine.bandwidth)
    slowdown = 1.0 - traits.memory + memory * latency[:, None]
    return np.maximum(slowdown, least), traffic


def _column(characters: list[Character], name: str) -> Array:
    return np.array([float(getattr(each, name)) for each in characters])
