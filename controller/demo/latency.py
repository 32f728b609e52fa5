# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Book-keeping of an open-loop load generator: what became of each request, per second.

A request belongs to the second in which it was *intended* to be sent and its latency counts
from that instant. A service that stalls for a second therefore shows a second of bad
latencies and not one bad request (Gil Tene's "coordinated omission"). A request that failed
or timed out counts as the longest latency that the generator waits for, so that losing
requests never improves a percentile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
import math

from controller.units import NS_PER_SEC, NS_PER_US

__all__ = ("Ledger", "SecondOfLoad", "quantile")


def quantile(values: Sequence[float], q: float) -> float | None:
    """Return the *q* quantile of *values* by nearest rank, None of nothing.

    :raises ValueError: *q* is not in (0, 1].
    """
    if not 0 < q <= 1:
        raise ValueError(f"quantile {q} is not in (0, 1]")
    if not values:
        return None
    return sorted(values)[math.ceil(q * len(values)) - 1]


@dataclass(slots=True, kw_only=True)
class SecondOfLoad:
    """All requests that were intended for one second of the schedule.

    ``late_us`` is the generator's own lateness, actual minus intended send time, of those
    requests for which a connection was free: it says how far the latencies can be trusted.
    ``queued`` requests had to wait for a connection, which is the service's fault and
    therefore part of their latency only.
    """

    index: int
    latency_us: list[int] = field(default_factory=list)
    late_us: list[int] = field(default_factory=list)
    queued: int = 0
    errors: int = 0
    timeouts: int = 0
    pending: int = 0


class Ledger:
    """Collects results and hands out seconds, in order, once nothing of them is pending."""

    def __init__(self, start_ns: int, timeout_ns: int) -> None:
        self._start_ns = start_ns
        self._timeout_us = timeout_ns // NS_PER_US
        self._open: dict[int, SecondOfLoad] = {}
        self._next = 0
        self.pending = 0

    def due(self, intended_ns: int) -> None:
        """Note that a request fell due; it is pending until one of the other calls ends it."""
        self._second(intended_ns).pending += 1
        self.pending += 1

    def sent(self, intended_ns: int, now_ns: int) -> None:
        """Note that a connection was free and the request left at *now_ns*."""
        self._second(intended_ns).late_us.append((now_ns - intended_ns) // NS_PER_US)

    def queued(self, intended_ns: int) -> None:
        """Note that no connection was free when the request fell due."""
        self._second(intended_ns).queued += 1

    def answered(self, intended_ns: int, now_ns: int) -> None:
        """Note a complete, good response."""
        self._end(intended_ns, (now_ns - intended_ns) // NS_PER_US)

    def failed(self, intended_ns: int) -> None:
        """Note a broken connection or a response that is not 200."""
        self._end(intended_ns, self._timeout_us).errors += 1

    def timed_out(self, intended_ns: int) -> None:
        """Note that nobody waits for the answer any more."""
        self._end(intended_ns, self._timeout_us).timeouts += 1

    def completed(self, scheduled_to_ns: int) -> list[SecondOfLoad]:
        """Return the finished seconds; nothing will fall due before *scheduled_to_ns*."""
        done = []
        while self._next < (scheduled_to_ns - self._start_ns) // NS_PER_SEC:
            second = self._open.get(self._next) or SecondOfLoad(index=self._next)
            if second.pending:
                break
            self._open.pop(self._next, None)
            done.append(second)
            self._next += 1
        return done

    def _second(self, intended_ns: int) -> SecondOfLoad:
        index = (intended_ns - self._start_ns) // NS_PER_SEC
        second = self._open.get(index)
        if second is None:
            second = self._open[index] = SecondOfLoad(index=index)
        return second

    def _end(self, intended_ns: int, latency_us: int) -> SecondOfLoad:
        second = self._second(intended_ns)
        second.latency_us.append(latency_us)
        second.pending -= 1
        self.pending -= 1
        return second
