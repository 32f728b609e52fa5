# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of a policy, and what a policy measures of a plant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from controller.simulation.machine import Array
from controller.simulation.plant import Plant

__all__ = ("Factory", "Meter", "Policy", "Reading")


class Policy(Protocol):
    """Moves the knobs of the plant for which it was made, every ``interval_s`` seconds.

    The interval is a multiple of a step. ``step`` is called first at time 0.
    """

    interval_s: float

    def step(self) -> None:
        """Read the plant and set its knobs."""


Factory = Callable[[Plant], Policy]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured since the last reading, as means: CPU use in CPUs, services first.

    ``services`` and ``jobs`` are the sums. ``cpi`` is that of each service (0: it did not run),
    ``bandwidth`` the memory traffic of each workload in bytes/s, ``services_delay`` the services'
    waiting for CPUs in seconds per second. ``requests`` are those of each service per second, and
    ``miss_ratio`` is each service's cache misses by references (0: none).
    ``job_work`` is the instructions of the jobs per second.
    """

    seconds: float
    cpus: Array
    services: float
    jobs: float
    cpi: Array
    bandwidth: Array
    services_delay: float
    requests: Array
    miss_ratio: Array
    job_work: float


class Meter:
    """Differences of a plant's counters."""

    def __init__(self, plant: Plant) -> None:
        self._plant = plant
        self._last = self._read()

    def read(self) -> Reading | None:
        """Return what was measured since the last call; ``None`` if no time has passed."""
        before, self._last = self._last, self._read()
        seconds = self._last[0] - before[0]
        if seconds <= 0:
            return None
        used, cycles, instructions, moved, waited, packets, misses, references = (
            new - old for new, old in zip(self._last[1:], before[1:], strict=True)
        )
        count = len(self._plant.scenario.services)
        cpus = used / seconds
        return Reading(
            seconds=seconds,
            cpus=cpus,
            services=float(cpus[:count].sum()),
            jobs=float(cpus[count:].sum()),
            cpi=_ratio(cycles[:count], instructions[:count]),
            bandwidth=moved / seconds,
            services_delay=float(waited[:count].sum()) / seconds,
            requests=packets / 2 / seconds,
            job_work=float(instructions[count:].sum()) / seconds,
            miss_ratio=_ratio(misses[:count], references[:count]),
        )

    def _read(self) -> tuple[float, *tuple[Array, ...]]:
        counters = self._plant.counters
        return (
            self._plant.time_s,
            counters.oncpu.copy(),
            counters.cycles.copy(),
            counters.instructions.copy(),
            counters.memory_bytes.copy(),
            counters.run_delay.copy(),
            counters.packets.copy(),
            counters.llc_misses.copy(),
            counters.llc_references.copy(),
        )


def _ratio(part: Array, whole: Array) -> Array:
    return np.asarray(np.divide(part, whole, out=np.zeros_like(part), where=whole > 0))
