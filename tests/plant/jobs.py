# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort jobs: what their code does to the machine, and how that changes with time.

The numbers are those of typical programs on a server core of 3 GHz: memory streams miss the cache
once per 20 to 50 instructions, a cache of hot data misses once per some hundred, and vector code
takes the execution units of its core.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ("INTEGER", "STREAM", "THRASH", "VECTOR", "Character", "Job", "Mix")

MIB = 1 << 20
CLOCK_HZ = 3e9
# Cycles from a miss of the last cache to the data, while the memory is not loaded.
MISS_CYCLES = 200.0


@dataclass(frozen=True)
class Character:
    """What code does to the machine, per instruction.

    ``core_cpi`` is its CPI without misses of the last cache. ``cold`` and ``warm`` are its misses
    with none and all of its working set in that cache, ``accesses`` those that reach the cache.
    ``exposed`` is the part of the latency of a miss that it does not hide. ``pressure`` is by how
    much it slows the other thread of its core down.
    """

    name: str
    core_cpi: float
    cold: float
    warm: float
    accesses: float
    working_set_bytes: float
    exposed: float
    pressure: float

    @property
    def alone_hz(self) -> float:
        """Instructions per second of one thread alone on the machine."""
        return CLOCK_HZ / (self.core_cpi + self.warm * MISS_CYCLES * self.exposed)


STREAM = Character("stream", 0.5, 0.05, 0.05, 0.05, 1024 * MIB, 0.2, 0.4)
THRASH = Character("thrash", 0.8, 0.03, 0.003, 0.06, 26 * MIB, 0.35, 0.5)
VECTOR = Character("vector", 0.45, 0.0005, 0.0002, 0.0005, 1 * MIB, 0.4, 1.5)
INTEGER = Character("integer", 0.7, 0.0005, 0.0001, 0.0005, 1 * MIB, 0.5, 0.12)


@dataclass(frozen=True)
class Job:
    """A best-effort job of *threads* busy threads, whose character changes every ``period_s``."""

    name: str
    threads: int
    cycle: tuple[Character, ...]
    period_s: float = 20.0

    def character(self, now_s: float) -> Character:
        """Return the character of the job at *now_s*."""
        return self.cycle[int(now_s / self.period_s) % len(self.cycle)]


@dataclass(frozen=True)
class Mix:
    """The present characters of all jobs as arrays, one element per job."""

    characters: tuple[Character, ...]

    def _array(self, name: str) -> NDArray[np.float64]:
        return np.array([getattr(each, name) for each in self.characters], dtype=np.float64)

    @cached_property
    def core_cpi(self) -> NDArray[np.float64]:
        """CPI without misses."""
        return self._array("core_cpi")

    @cached_property
    def cold(self) -> NDArray[np.float64]:
        """Misses per instruction without any cache."""
        return self._array("cold")

    @cached_property
    def warm(self) -> NDArray[np.float64]:
        """Misses per instruction with the whole working set in the cache."""
        return self._array("warm")

    @cached_property
    def accesses(self) -> NDArray[np.float64]:
        """Accesses to the last cache per instruction."""
        return self._array("accesses")

    @cached_property
    def working_set(self) -> NDArray[np.float64]:
        """Bytes of the working sets."""
        return self._array("working_set_bytes")

    @cached_property
    def exposed(self) -> NDArray[np.float64]:
        """Parts of the latency of a miss that are not hidden."""
        return self._array("exposed")

    @cached_property
    def pressure(self) -> NDArray[np.float64]:
        """Slowdown of a sibling."""
        return self._array("pressure")

    @cached_property
    def alone_hz(self) -> NDArray[np.float64]:
        """Instructions per second of one thread alone."""
        return self._array("alone_hz")
