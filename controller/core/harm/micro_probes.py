# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Micro-probes: short cuts of one best-effort workload at random, to find out whether it hurts.

Random moments, so that no rhythm of a service or a workload looks like an effect. The random
numbers come from the time of the tick, so a recording replays to the same probes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from controller.core.decision import Action
from controller.core.harm.harm_finder import LEAST_HARM
from controller.core.model import CgroupId
from controller.core.settings import MicroProbeLimits
from controller.core.units import NS_PER_SEC

__all__ = ("MicroProbes",)

# Between two probes, so that the service is seen without one as well.
_SHORTEST_GAP_NS = 200_000_000
_LONGEST_GAP_NS = 600_000_000
# Probes that a workload may have at once after a quiet minute.
_BURST = 3.0
_REASON = "micro-probe: whether this workload hurts a service that suffers"
_MASK = (1 << 64) - 1


class _Probe(NamedTuple):
    cgroup: CgroupId
    cpus: float
    end_ns: int


class MicroProbes:
    """Decides in every tick which workload is probed."""

    __slots__ = ("_budgets", "_next_ns", "_probe", "_touched")

    def __init__(self) -> None:
        self._probe: _Probe | None = None
        self._next_ns = 0
        # The workload that is probed, or was until this tick.
        self._touched: CgroupId | None = None
        # For each workload, the probes that it may have, and when that was computed.
        self._budgets: dict[CgroupId, tuple[float, int]] = {}

    def update(
        self,
        doubts: Mapping[CgroupId, float],
        amounts: Mapping[CgroupId, float],
        floor: float,
        limits: MicroProbeLimits,
        now_ns: int,
    ) -> Mapping[CgroupId, float]:
        """Return the CPUs of the workload that is probed now; empty if none is.

        *doubts* is how much slowdown each workload might cause, of those that may be probed,
        *amounts* the CPUs that it has now. No probe leaves less than *floor*.
        """
        probe = self._probe
        self._touched = None if probe is None else probe.cgroup
        if probe is not None and (now_ns >= probe.end_ns or probe.cgroup not in doubts):
            self._probe = probe = None
            gap_ns = _LONGEST_GAP_NS - _SHORTEST_GAP_NS
            self._next_ns = now_ns + _SHORTEST_GAP_NS + int(_random(now_ns, 1) * gap_ns)
        if probe is None and doubts and limits.per_minute > 0 and now_ns >= self._next_ns:
            self._probe = probe = self._choose(doubts, amounts, floor, limits, now_ns)
        if probe is None:
            return {}
        self._touched = probe.cgroup
        return {probe.cgroup: probe.cpus}

    def explain(self, actions: list[Action]) -> list[Action]:
        """Return *actions*, with a reason of its own for each that begins or ends a probe."""
        touched = self._touched
        return [
            replace(each, reason=_REASON)
            if touched is not None and (each.target.scope, each.target.id) == touched
            else each
            for each in actions
        ]

    def _choose(
        self,
        doubts: Mapping[CgroupId, float],
        amounts: Mapping[CgroupId, float],
        floor: float,
        limits: MicroProbeLimits,
        now_ns: int,
    ) -> _Probe | None:
        self._refill(doubts, limits, now_ns)
        keep = 1.0 - limits.depth_ratio
        chances = {
            cgroup: doubt * doubt
            for cgroup, doubt in doubts.items()
            if doubt >= LEAST_HARM
            and self._budgets[cgroup][0] >= 1.0
            and keep * amounts[cgroup] >= floor
        }
        left = _random(now_ns, 0) * sum(chances.values())
        for cgroup, chance in chances.items():
            left -= chance
            if left <= 0:
                self._budgets[cgroup] = self._budgets[cgroup][0] - 1.0, now_ns
                return _Probe(cgroup, keep * amounts[cgroup], now_ns + limits.length_ns)
        return None

    def _refill(
        self, present: Mapping[CgroupId, float], limits: MicroProbeLimits, now_ns: int
    ) -> None:
        before = self._budgets
        per_ns = limits.per_minute / (60 * NS_PER_SEC)
        self._budgets = {}
        for cgroup in present:
            budget, then_ns = before.get(cgroup, (_BURST, now_ns))
            self._budgets[cgroup] = min(_BURST, budget + per_ns * (now_ns - then_ns)), now_ns


def _random(now_ns: int, salt: int) -> float:
    """Return a number from 0 to 1 that looks random (SplitMix64 of Steele et al., OOPSLA 2014)."""
    state = (now_ns * 2 + salt + 1) * 0x9E3779B97F4A7C15 & _MASK
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return (state ^ state >> 31) / 2.0**64
