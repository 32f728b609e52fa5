# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Koordinator's CPUSuppress: jobs get what is left below a threshold of node use.

Written from the behaviour of koordlet 1.8 (plugin cpusuppress): every second, from the use of the
last second without smoothing. The limit falls at once, and rises by at most a tenth of the node.
"""

from dataclasses import dataclass
import math

from controller.simulation.plant import Plant
from controller.simulation.policies.fixed import set_idle
from controller.simulation.policies.policy import Meter

__all__ = ("Koordinator", "KoordinatorSettings", "cpu_budget", "next_cpuset", "next_quota")

_GROWTH = 0.1  # of the node's CPUs, per second
_DEAD_BAND = 0.01  # of the node's CPUs
_FLOOR_CPUS = 0.02  # 2000 us per 100 ms
_LEAST_CPUS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KoordinatorSettings:
    """``threshold`` is cpuSuppressThresholdPercent / 100.

    ``cpuset``: the default policy, otherwise cfsQuota. ``idle``: cpu.idle of best-effort pods.
    ``ways`` is the part of the cache and ``mba`` the percentage that resctrl leaves the jobs;
    upstream's default is off.
    """

    threshold: float = 0.65
    cpuset: bool = True
    idle: bool = False
    ways: float = 1.0
    mba: float = 100.0


def cpu_budget(cpus: float, threshold: float, services: float, system: float = 0.0) -> float:
    """Return the CPUs that jobs may use beside *services* and *system*, which may be negative."""
    return cpus * threshold - services - system


def next_quota(budget: float, current: float, cpus: float) -> float:
    """Return the quota in CPUs after *current* (inf: unset)."""
    quota = max(budget, _FLOOR_CPUS)
    if abs(quota - current) < _DEAD_BAND * cpus and quota > _FLOOR_CPUS:
        return current
    if math.isfinite(current) and quota - current > _GROWTH * cpus:
        return current + _GROWTH * cpus
    return quota


def next_cpuset(budget: float, current: float, cpus: int) -> int:
    """Return the number of CPUs after *current* (inf: all)."""
    count = max(_LEAST_CPUS, math.ceil(budget))
    return min(count, cpus, int(min(current, cpus)) + math.ceil(_GROWTH * cpus))


class Koordinator:
    """CPUSuppress on a plant."""

    interval_s = 1.0

    def __init__(self, plant: Plant, settings: KoordinatorSettings | None = None) -> None:
        self._plant = plant
        self._settings = settings or KoordinatorSettings()
        self._meter = Meter(plant)

    def step(self) -> None:
        """Take one second."""
        plant, settings = self._plant, self._settings
        knobs, cpus = plant.knobs, plant.machine.cpus
        reading = self._meter.read()
        if reading is None:
            set_idle(plant, settings.idle)
            knobs.ways = math.ceil(settings.ways * plant.machine.ways)
            knobs.mba = settings.mba
            return
        budget = cpu_budget(cpus, settings.threshold, reading.services)
        if settings.cpuset:
            knobs.cpuset = next_cpuset(budget, knobs.cpuset, cpus)
        else:
            knobs.all_quota = next_quota(budget, knobs.all_quota, cpus)
