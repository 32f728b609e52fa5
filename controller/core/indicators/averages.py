# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Averages of many rates, of which few change in one tick."""

from collections.abc import Iterable
import math
from typing import Generic, TypeVar

__all__ = ("CULPRIT_S", "NEGLIGIBLE_CPUS", "Averages")

Key = TypeVar("Key")

# The time constant of who the culprits are, in seconds.
CULPRIT_S = 30.0
# Averages below this are dropped.
NEGLIGIBLE_CPUS = 1e-6


class Averages(Generic[Key]):
    """Averages over *time_s* by key, which decay when they are read and not in every tick.

    There may be as many pairs of victim and culprit as services times best-effort workloads, and
    few of them change in one tick. They are kept as multiples of a common unit, which decays.
    """

    __slots__ = ("_began_s", "_now_s", "_time_s", "_unit", "_values")

    def __init__(self, time_s: float = CULPRIT_S) -> None:
        self._time_s = time_s
        self._values: dict[Key, float] = {}
        self._began_s = self._now_s = 0.0
        self._unit = 1.0

    def add(self, rates: Iterable[tuple[Key, float]], now_s: float, weight: float) -> None:
        """Average in the *rates* of a tick of this *weight* that ends at *now_s*."""
        self._decay(now_s)
        values, unit = self._values, self._unit
        for key, rate in rates:
            values[key] = values.get(key, 0.0) + weight * rate / unit

    def read(self, now_s: float) -> dict[Key, float]:
        """Return the averages, without those that can be dropped."""
        self._decay(now_s)
        unit = self._unit
        least = NEGLIGIBLE_CPUS / unit
        return {key: value * unit for key, value in self._values.items() if value > least}

    def prune(self, now_s: float) -> None:
        """Drop the averages that can be dropped, and begin a new unit."""
        self._values = self.read(now_s)
        self._began_s, self._unit = now_s, 1.0

    def _decay(self, now_s: float) -> None:
        if now_s != self._now_s:
            self._now_s = now_s
            self._unit = math.exp((self._began_s - now_s) / self._time_s)
