# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions before the node is out of memory, when no service suffers yet.

The kernel would kill the largest process, and kubelet looks every ten seconds only. The order is
that of kubelet: the workload that is most above its request first, then the lower priority, then
the larger one. Evictions count for the limit of an hour, as all do. The time between two of them is
short, because memory may run out within seconds. What the last victims still hold counts as free.
"""

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from controller.core.decision import Eviction, MemoryReport, Verdict
from controller.core.eviction.budget import (
    HELD_NS,
    LEAVE_NS,
    Candidate,
    EvictionBudget,
    EvictionHistory,
)
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult, MemoryUse
from controller.core.units import NS_PER_SEC, format_bytes
from controller.core.workload_index import WorkloadIndex

__all__ = ("ShortageEvictions", "memory_candidates")

# So long best-effort work may need more than the room: the kernel kills at the limit meanwhile.
_ABOVE_ROOM_NS = 5 * NS_PER_SEC
_COOL_DOWN_NS = 4 * NS_PER_SEC


def memory_candidates(uses: Iterable[MemoryUse], index: WorkloadIndex) -> list[Candidate]:
    """Return the workloads of *uses* that may be evicted; containers of one pod are one.

    The blame is what they need more than they requested, the size what they need, both in bytes.
    """
    needed: dict[CgroupId, int] = {}
    found: dict[CgroupId, Candidate] = {}
    for use in uses:
        workload = index.best_effort.get(use.cgroup)
        if workload is None or not workload.evictable:
            continue
        whole = workload.whole
        needed[whole] = size = needed.get(whole, 0) + use.needed_bytes
        over = size - (workload.limit_memory_bytes or 0)
        name, priority = workload.whole_name, workload.priority
        found[whole] = Candidate(whole, name, over, 0.0, priority, size)
    return list(found.values())


class _Asked(NamedTuple):
    """An eviction under way: until ``until_ns`` its memory counts as free."""

    name: str
    needed_bytes: float
    asked_ns: int
    until_ns: int


class ShortageEvictions:
    """Decides whether a workload is evicted for memory; ``verdicts`` are those of the last tick.

    :param past: the evictions of an earlier planner; the last of its victims may still leave.
    """

    def __init__(self, past: EvictionHistory) -> None:
        self._above_ns: int | None = None
        self._asked: dict[CgroupId, _Asked] = {}
        self._next_ns = past.asked_ns[-1] + _COOL_DOWN_NS if past.asked_ns else 0
        self.verdicts: list[Verdict] = []

    def step(
        self,
        now_ns: int,
        memory: MemoryReport | None,
        candidates: Callable[[], Iterable[Candidate]],
        present: Container[CgroupId],
        answers: Iterable[EvictionAnswer],
        budget: EvictionBudget,
    ) -> Eviction | None:
        """Return the eviction to request in this tick, if any.

        *present* are the workloads of this tick, *answers* those to all earlier evictions.
        """
        self.verdicts = []
        for answer in answers:
            self._take(answer, now_ns, budget)
        for cgroup, asked in list(self._asked.items()):
            if cgroup not in present or now_ns >= asked.until_ns:
                del self._asked[cgroup]
        if memory is None:
            self._above_ns = None
            return None
        missing, why = self._missing(memory, now_ns)
        missing -= sum(each.needed_bytes for each in self._asked.values())
        if missing <= 0 or now_ns < self._next_ns or not budget.allows(now_ns, for_service=False):
            return None
        possible = (
            each
            for each in candidates()
            if each.cgroup not in self._asked and budget.is_candidate(each.cgroup, now_ns)
        )
        victim = min(possible, key=lambda each: each.order, default=None)
        return None if victim is None else self._evict(victim, why, now_ns, budget)

    def _missing(self, memory: MemoryReport, now_ns: int) -> tuple[float, str]:
        """Return how many bytes have to become free, 0 or less for none, and why."""
        half = memory.margin_bytes // 2
        above = memory.needed_bytes - memory.room_bytes
        if above <= 0:
            self._above_ns = None
        elif self._above_ns is None:
            self._above_ns = now_ns
        if memory.available_bytes < half:
            available, least = format_bytes(memory.available_bytes), format_bytes(half)
            return half - memory.available_bytes, f"{available} of {least} are available"
        if self._above_ns is not None and now_ns - self._above_ns >= _ABOVE_ROOM_NS:
            needed, room = (
                format_bytes(each) for each in (memory.needed_bytes, max(0, memory.room_bytes))
            )
            return above, f"best-effort work needs {needed} of {room}"
        return 0, ""

    def _evict(self, victim: Candidate, why: str, now_ns: int, budget: EvictionBudget) -> Eviction:
        over = format_bytes(max(0, victim.blame))
        reason = f"the node runs out of memory ({why}); {victim.name} is {over} above its request"
        self._asked[victim.cgroup] = _Asked(victim.name, victim.size, now_ns, now_ns + LEAVE_NS)
        self._next_ns = now_ns + _COOL_DOWN_NS
        self._above_ns = None
        budget.spend(now_ns)
        self.verdicts.append(Verdict(subject=victim.name, text=f"to be evicted: {reason}"))
        return Eviction(
            cgroup=victim.cgroup,
            name=victim.name,
            channel=Channel.MEMORY,
            service="",
            blame=float(victim.size),
            reason=reason,
        )

    def _take(self, answer: EvictionAnswer, now_ns: int, budget: EvictionBudget) -> None:
        asked = self._asked.get(answer.cgroup)
        if asked is None or answer.channel is not Channel.MEMORY:
            return
        result = answer.result
        budget.take(answer, asked.asked_ns, now_ns)
        if result.leaves:
            until_ns = now_ns + max(LEAVE_NS, answer.wait_ns)
            self._asked[answer.cgroup] = asked._replace(until_ns=until_ns)
        else:
            del self._asked[answer.cgroup]
        if result in (EvictionResult.HELD, EvictionResult.REPORTED):
            self._next_ns = now_ns + (answer.wait_ns or HELD_NS)
        text = f"eviction {result}: {answer.message}"
        self.verdicts.append(Verdict(subject=asked.name, text=text))
