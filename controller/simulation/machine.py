# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The hardware and the scheduler of a simulated node, as functions of arrays.

Rows are moments within one step, columns are the workloads. docs/SIMULATION.md has the equations
with their sources.
"""

from dataclasses import dataclass
import math

import numpy as np
import numpy.typing as npt

__all__ = (
    "IDLE_WEIGHT",
    "KUBELET_WEIGHT",
    "NORMAL_WEIGHT",
    "Array",
    "Machine",
    "burst_coverage",
    "cache_misses",
    "mba_part",
    "memory_latency",
    "share_cpus",
    "sibling_busy",
)

Array = npt.NDArray[np.float64]

# Weight of an entity of SCHED_IDLE: WEIGHT_IDLEPRIO in kernel/sched/sched.h. A cgroup of normal
# weight has 1024.
IDLE_WEIGHT = 3.0
NORMAL_WEIGHT = 1024.0
# Weight of the besteffort cgroup that kubelet sets: MinShares, pkg/kubelet/cm/helpers_linux.go.
KUBELET_WEIGHT = 2.0

# Loaded latency relative to the unloaded one: 1.4 at 70 %, 2.0 at 90 % and 2.5 at 100 % of the
# bandwidth, like the curves measured for DDR4 and DDR5 servers (Esmaili-Dokht et al., "A Mess of
# Memory System Benchmarking", MICRO 2024).
_LATENCY_RISE = 1.5
_LATENCY_POWER = 4.0
# Percent of MBA to the part of the bandwidth that is left: 10 % leave 0.23 of it (17.7 to 4 GB/s,
# intel/intel-cmt-cat issue 183).
_MBA_BEND = 2.4
# Below this share of the bandwidth the latency is the unloaded one (within 1 %).
_UNLOADED = 0.25
_WORST_LATENCY = 50.0
_BISECTIONS = 12  # to a thousandth of the latency
_TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node: ``bandwidth`` of its memory in bytes/s and the most that one CPU can move; cache
    ``ways``; what can be measured (``pmu``) and set.

    ``slice_s`` is the scheduler's base slice: 0.7 ms * (1 + log2(8)) with 8 CPUs and more
    (sysctl_sched_base_slice and update_sysctl, kernel/sched/fair.c).
    """

    cpus: int = 16
    threads_per_core: int = 2
    bandwidth: float = 40e9
    cpu_bandwidth: float = 12e9
    ways: int = 12
    hz: float = 3e9
    slice_s: float = 2.8e-3
    pmu: bool = True
    resctrl: bool = True
    sched_idle: bool = True

    @property
    def cores(self) -> float:
        """Number of cores."""
        return self.cpus / self.threads_per_core


def share_cpus(wanted: Array, weights: Array, cpus: float) -> Array:
    """Return the CPUs that each workload gets: weighted max-min fairness, row by row.

    *wanted* (rows, workloads) is what each could use, *weights* (workloads). It is the ideal that
    CFS approximates (generalised processor sharing): nothing is left unused while a workload wants
    more, and of two workloads that want more each gets CPUs in proportion to its weight.
    """
    if wanted.shape[1] == 0:
        return wanted.copy()
    order = np.argsort(wanted / weights, axis=1)
    sorted_wants = np.take_along_axis(wanted, order, axis=1)
    sorted_weights = weights[order]
    before = np.cumsum(sorted_wants, axis=1) - sorted_wants
    rest = np.cumsum(sorted_weights[:, ::-1], axis=1)[:, ::-1]
    level = np.maximum(0.0, cpus - before) / rest
    limited = sorted_wants > level * sorted_weights
    # The first limited workload sets the level for all that follow it.
    first = np.argmax(limited, axis=1)
    any_limited = limited[np.arange(len(first)), first]
    theta = np.where(any_limited, level[np.arange(len(first)), first], np.inf)
    return np.minimum(wanted, theta[:, None] * weights)


def burst_coverage(edges: Array, part: Array, period: Array, phase: Array) -> Array:
    """Return how much of each row a limited workload may run, 0 to 1 (rows, workloads).

    A workload under a quota runs the first *part* of every *period* and is throttled for the rest;
    *phase* is when its period starts. *edges* are the rows' borders. All in seconds.
    """
    x = edges[:, None] - phase
    done = np.floor(x / period)
    ran = done * part * period + np.minimum(x - done * period, part * period)
    return np.asarray(np.diff(ran, axis=0) / np.diff(edges)[:, None])


def sibling_busy(
    running: Array, services: int, cpuset: float, machine: Machine
) -> tuple[Array, Array]:
    """Return the probability that the other thread of a core runs each workload.

    *running* (rows, workloads) in CPUs, the first *services* columns are services, the others jobs.
    The first result is for a service's thread, the second for a job's. The scheduler prefers idle
    cores (select_idle_core), so threads share a core only when more of them run than there are
    cores, and the neighbour is then a random one. A *cpuset* confines the jobs to so many CPUs,
    which are whole cores; the services run on the other cores first.
    """
    if machine.threads_per_core < 2:
        nothing = np.zeros_like(running)
        return nothing, nothing
    if cpuset >= machine.cpus:
        everywhere = _neighbours(running, machine.cores)
        return everywhere, everywhere
    inside = cpuset / machine.threads_per_core
    outside = machine.cores - inside
    total = np.maximum(running[:, :services].sum(axis=1, keepdims=True), _TINY)
    out = np.minimum(1.0, outside * machine.threads_per_core / total)
    alone = np.zeros_like(running)
    alone[:, :services] = running[:, :services] * out
    mixed = running - alone
    among_jobs = _neighbours(mixed, inside)
    return out * _neighbours(alone, outside) + (1.0 - out) * among_jobs, among_jobs


def _neighbours(running: Array, cores: float) -> Array:
    total = np.maximum(running.sum(axis=1), _TINY)
    paired = np.clip(2.0 * (total - cores) / total, 0.0, 1.0)
    return np.asarray(running * (paired / total)[:, None])


def memory_latency(demand: Array, memory: Array, least: Array, bandwidth: float) -> Array:
    """Return the loaded latency relative to the unloaded one, for each row.

    *demand* (rows, workloads) in bytes/s is what each would move at full speed, *memory* the part
    of its time alone that it waits for memory, *least* the slowdown that MBA forces on it. A
    workload that is slowed down moves less, so latency and traffic are found together, by
    bisection: the latency follows the curve of the memory, and where even its end leaves more
    traffic than *bandwidth*, it is what makes the traffic equal to the bandwidth.
    """
    fits = bool((demand.sum(axis=1) < _UNLOADED * bandwidth).all())
    low = np.zeros(len(demand))
    if fits:
        return np.asarray(low + 1.0)
    high = np.full(len(demand), math.log(_WORST_LATENCY))
    part_cpu = 1.0 - memory
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        latency = np.exp(middle)
        slowdown = np.maximum(part_cpu + memory * latency[:, None], least)
        used = (demand / slowdown).sum(axis=1) / bandwidth
        curve = np.minimum(1.0, ((latency - 1.0) / _LATENCY_RISE) ** (1.0 / _LATENCY_POWER))
        too_low = used > curve
        low = np.where(too_low, middle, low)
        high = np.where(too_low, high, middle)
    return np.asarray(np.exp((low + high) / 2))


def mba_part(percent: float) -> float:
    """Return the part of a CPU's memory bandwidth that an MBA value of *percent* leaves."""
    return float(1.0 - (1.0 - percent / 100.0) ** _MBA_BEND)


def cache_misses(
    pressure: Array, working_set: Array, limited: npt.NDArray[np.bool_], ways: int, limit: int
) -> Array:
    """Return, by workload, the part of its working set that is not cached, 0 to 1.

    Under LRU without partitions the occupancy follows the rate of insertions, *pressure* (Chandra
    et al., HPCA 2005). Those in *limited* share *limit* of the *ways*; the others use all.
    *working_set* is in ways.
    """
    total = max(float(pressure.sum()), 1e-12)
    occupied = ways * pressure / total
    inside = float(occupied[limited].sum())
    if inside > limit:
        occupied = occupied.copy()
        occupied[limited] *= limit / inside
        outside = ~limited
        sum_outside = float(occupied[outside].sum())
        if sum_outside > 0:
            occupied[outside] *= (ways - limit) / sum_outside
    return np.asarray(np.maximum(0.0, 1.0 - occupied / np.maximum(working_set, 1e-9)))
