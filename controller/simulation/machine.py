# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The hardware and the scheduler of a simulated node, as functions of arrays.

Rows are moments within one step, columns are the workloads. docs/SIMULATION.md has the equations
with their sources.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = (
    "IDLE_WEIGHT",
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

# Loaded latency relative to the unloaded one: 1.4 at 70 %, 2.0 at 90 % and 2.5 at 100 % of the
# bandwidth, like the curves measured for DDR4 and DDR5 servers (Esmaili-Dokht et al., "A Mess of
# Memory System Benchmarking", MICRO 2024).
_LATENCY_RISE = 1.5
_LATENCY_POWER = 4.0
# Percent of MBA to the part of the bandwidth that is left: 10 % leave 0.23 of it (17.7 to 4 GB/s,
# intel/intel-cmt-cat issue 183).
_MBA_BEND = 2.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node: ``bandwidth`` of its memory in bytes/s, cache ``ways``, what can be measured and set.

    ``slice_s`` is the scheduler's base slice: 0.7 ms * (1 + log2(8)) with 8 CPUs and more
    (sysctl_sched_base_slice and update_sysctl, kernel/sched/fair.c). ``steal_ratio`` is the part of
    the CPU time that a hypervisor takes away.
    """

    cpus: int = 16
    threads_per_core: int = 2
    bandwidth: float = 40e9
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


def sibling_busy(running: Array, machine: Machine) -> Array:
    """Return the probability that the other thread of a running thread's core runs each workload.

    *running* (rows, workloads) in CPUs. The scheduler prefers idle cores (select_idle_core), so
    threads share a core only when more of them run than there are cores. The neighbour is a random
    one of the running threads.
    """
    if machine.threads_per_core < 2:
        return np.zeros_like(running)
    total = np.maximum(running.sum(axis=1), 1e-9)
    paired = np.clip(2.0 * (total - machine.cores) / total, 0.0, 1.0)
    return np.asarray(running * (paired / total)[:, None])


def memory_latency(offered: Array) -> Array:
    """Return the loaded latency relative to the unloaded one at an *offered* share of bandwidth.

    Beyond 1 the requests outstanding queue for a saturated memory, so that the latency is
    proportional to what is offered (Little's law).
    """
    rise = 1.0 + _LATENCY_RISE * np.minimum(offered, 1.0) ** _LATENCY_POWER
    return np.asarray(rise * np.maximum(offered, 1.0))


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
