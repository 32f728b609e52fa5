# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Feed-forward: what best-effort may have of a resource without being in the services' way."""

from collections import deque

__all__ = ("Ceiling",)

_PEAK_NS = 2_000_000_000
_RISE_S = 2.0


class Ceiling:
    """Tracks what the services need, and moves best-effort's ceiling out of their way.

    ``target`` is the CPUs that best-effort may use, less system work and the reserve, less the
    peak over *peak_ns* of what the services need: their on-CPU time, and of the wait inflicted on
    them the part that their sweet points do not accept. ``cpus`` falls to it at once and rises
    to it with a time constant of *rise_s*.
    """

    __slots__ = ("_needs", "_peak_ns", "_rise_s", "cpus", "target")

    def __init__(self, cpus: float, peak_ns: int = _PEAK_NS, rise_s: float = _RISE_S) -> None:
        self._needs: deque[tuple[int, float]] = deque()
        self._peak_ns = peak_ns
        self._rise_s = rise_s
        self.cpus = cpus
        self.target = cpus

    def update(self, now_ns: int, dt_s: float, available: float, services_need: float) -> float:
        """Take the services' need in CPUs at *now_ns* and return the ceiling.

        *available* is what is left of the machine for services and best-effort together.
        """
        needs = self._needs
        # A falling deque: its head is the peak, and what a later need exceeds never will be.
        while needs and needs[-1][1] <= services_need:
            needs.pop()
        needs.append((now_ns, services_need))
        while needs[0][0] < now_ns - self._peak_ns:
            needs.popleft()
        self.target = max(0.0, available - needs[0][1])
        if self.target < self.cpus:
            self.cpus = self.target
        else:
            self.cpus += min(1.0, dt_s / self._rise_s) * (self.target - self.cpus)
        return self.cpus

    def start_at(self, cpus: float) -> None:
        """Lower the ceiling to *cpus*, from where it rises again.

        A quota above what best-effort uses has no bite; so a squeeze starts at the use.
        """
        self.cpus = min(self.cpus, cpus)
