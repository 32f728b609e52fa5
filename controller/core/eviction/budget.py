# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What all evictions of a node share: the limit of an hour, and the workloads that were refused."""

from collections import deque
from typing import NamedTuple

from controller.core.model import CgroupId
from controller.core.settings import EvictionLimits
from controller.core.units import NS_PER_SEC

__all__ = ("HELD_NS", "LEAVE_NS", "REFUSED_NS", "EvictionBudget", "EvictionHistory")

# A victim that is not gone after this time is not waited for any more.
LEAVE_NS = 120 * NS_PER_SEC
# A workload whose eviction was refused (a disruption budget) is no candidate for this time.
REFUSED_NS = 300 * NS_PER_SEC
# The pause after an answer that no workload can be evicted now.
HELD_NS = 60 * NS_PER_SEC
_HOUR_NS = 3600 * NS_PER_SEC


class EvictionHistory(NamedTuple):
    """The evictions of an earlier policy that bind its successor, in the time of the ticks.

    ``asked_ns`` are the times of the evictions of the last hour, the oldest first. The next
    eviction is not before ``not_before_ns``.
    """

    asked_ns: tuple[int, ...] = ()
    not_before_ns: int = 0


class EvictionBudget:
    """The evictions of the last hour, at most ``limits`` has; ``before`` binds this budget."""

    __slots__ = ("_asked_ns", "_excluded_ns", "before", "limits")

    def __init__(self, limits: EvictionLimits, before: EvictionHistory) -> None:
        self.before = before
        self.limits = limits
        self._asked_ns = deque(before.asked_ns)
        self._excluded_ns: dict[CgroupId, int] = {}

    @property
    def asked_ns(self) -> tuple[int, ...]:
        """The times of the evictions of the last hour, the oldest first."""
        return tuple(self._asked_ns)

    def allows(self, now_ns: int) -> bool:
        """Return whether one more workload may be evicted now."""
        asked = self._asked_ns
        while asked and asked[0] <= now_ns - _HOUR_NS:
            asked.popleft()
        return now_ns >= self.before.not_before_ns and len(asked) < self.limits.per_hour

    def spend(self, now_ns: int) -> None:
        """Count an eviction that is asked for now."""
        self._asked_ns.append(now_ns)

    def refund(self, asked_ns: int) -> None:
        """Take back what was spent at *asked_ns*: nothing was evicted."""
        if asked_ns in self._asked_ns:
            self._asked_ns.remove(asked_ns)

    def exclude(self, cgroup: CgroupId, now_ns: int, wait_ns: int) -> None:
        """Let *cgroup* be no candidate for *wait_ns*."""
        still = {each: until for each, until in self._excluded_ns.items() if until > now_ns}
        self._excluded_ns = {**still, cgroup: now_ns + wait_ns}

    def is_candidate(self, cgroup: CgroupId, now_ns: int) -> bool:
        """Return whether *cgroup* is not excluded now."""
        return now_ns >= self._excluded_ns.get(cgroup, 0)
