# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What all evictions of a node share: the limit of an hour, and the workloads that were refused.

Also the candidates and their order: the one with the most blame first, of equals the one with the
lowest priority, then the largest.
"""

from collections import deque
from typing import NamedTuple

from controller.core.model import CgroupId, EvictionAnswer, EvictionResult
from controller.core.settings import EvictionLimits
from controller.core.units import NS_PER_SEC

__all__ = ("HELD_NS", "HOUR_NS", "LEAVE_NS", "Candidate", "EvictionBudget", "EvictionHistory")

# A victim that is not gone after this time is not waited for any more.
LEAVE_NS = 120 * NS_PER_SEC
# A workload whose eviction was refused (a disruption budget) is no candidate for this time.
_REFUSED_NS = 300 * NS_PER_SEC
# The pause after an answer that no workload can be evicted now.
HELD_NS = 60 * NS_PER_SEC
HOUR_NS = 3600 * NS_PER_SEC


class Candidate(NamedTuple):
    """A workload that may be evicted; ``blame`` and ``size`` are in a unit of the caller's.

    ``share`` is the part of the deviation that the workload caused; the shares of all best-effort
    workloads add up to ``Case.be_share``.
    """

    cgroup: CgroupId
    name: str
    blame: float
    share: float
    priority: int
    size: float

    @property
    def order(self) -> tuple[float, int, float]:
        """The sort key by which the first is evicted."""
        return -self.blame, self.priority, -self.size


class EvictionHistory(NamedTuple):
    """The evictions of an earlier policy that bind its successor, in the time of the ticks.

    ``asked_ns`` are the times of the evictions of the last hour, the oldest first. The next
    eviction for a service is not before ``not_before_ns``.
    """

    asked_ns: tuple[int, ...] = ()
    not_before_ns: int = 0


class EvictionBudget:
    """The evictions of the last hour, at most ``limits`` has; ``before`` binds this budget."""

    def __init__(self, limits: EvictionLimits, before: EvictionHistory) -> None:
        self.before = before
        self.limits = limits
        self._asked_ns = deque(before.asked_ns)
        self._excluded_ns: dict[CgroupId, int] = {}

    @property
    def asked_ns(self) -> tuple[int, ...]:
        """The times of the evictions of the last hour, the oldest first."""
        return tuple(self._asked_ns)

    def allows(self, now_ns: int, *, for_service: bool = True) -> bool:
        """Return whether one more workload may be evicted now.

        Pauses after evictions for a service, *for_service*, do not bind those for memory.
        """
        asked = self._asked_ns
        while asked and asked[0] <= now_ns - HOUR_NS:
            asked.popleft()
        paused = for_service and now_ns < self.before.not_before_ns
        return not paused and len(asked) < self.limits.per_hour

    def spend(self, now_ns: int) -> None:
        """Count an eviction that is asked for now."""
        self._asked_ns.append(now_ns)

    def take(self, answer: EvictionAnswer, asked_ns: int, now_ns: int) -> None:
        """Take the *answer* to the eviction asked for at *asked_ns*.

        What evicted nothing is taken back. A workload that was refused, frozen or killed is no
        candidate for the time of the answer.
        """
        result, wait_ns = answer.result, answer.wait_ns
        done = result in (EvictionResult.FROZEN, EvictionResult.KILLED)
        if not (done or result.leaves) and asked_ns in self._asked_ns:
            self._asked_ns.remove(asked_ns)
        if result is EvictionResult.REFUSED:
            wait_ns = wait_ns or _REFUSED_NS
        elif not done:
            return
        still = {each: until for each, until in self._excluded_ns.items() if until > now_ns}
        self._excluded_ns = {**still, answer.cgroup: now_ns + wait_ns}

    def is_candidate(self, cgroup: CgroupId, now_ns: int) -> bool:
        """Return whether *cgroup* is not excluded now."""
        return now_ns >= self._excluded_ns.get(cgroup, 0)
