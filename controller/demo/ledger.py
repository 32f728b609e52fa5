# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Accounting of requests by the second in which they were due.

The load generator assigns a request to the second in which it was *intended* to be sent, and its
latency counts from that instant. A service that stalls for a second therefore has a second of
high latencies and not one slow request (Gil Tene's "coordinated omission"). A request that failed
or timed out counts with the time-out as its latency, so that lost requests never improve a
percentile.
"""

from dataclasses import dataclass, field

from controller.core.units import NS_PER_SEC, NS_PER_US

__all__ = ("Ledger", "SecondOfLoad")


@dataclass(slots=True, kw_only=True)
class SecondOfLoad:
    """All requests that were intended for one second of the schedule.

    ``late_us`` is the lateness of the generator, actual minus intended send time, of requests for
    which a connection was free; it is the error of the latencies. ``queued`` is the number of
    requests that waited for a connection. The service causes that wait, so it is part of their
    latency and not of the lateness.
    """

    index: int
    latency_us: list[int] = field(default_factory=list)
    late_us: list[int] = field(default_factory=list)
    queued: int = 0
    errors: int = 0
    timeouts: int = 0
    pending: int = 0


class Ledger:
    """Accounting of the load generator: results per second of the schedule, in order."""

    def __init__(self, start_ns: int, timeout_ns: int) -> None:
        self._start_ns = start_ns
        self._timeout_us = timeout_ns // NS_PER_US
        self._open: dict[int, SecondOfLoad] = {}
        self._next = 0
        self.pending = 0

    def due(self, intended_ns: int) -> None:
        """Count a due request; it is pending until ``answered``, ``failed`` or ``timed_out``."""
        self._second(intended_ns).pending += 1
        self.pending += 1

    def sent(self, intended_ns: int, now_ns: int) -> None:
        """Record the lateness of a request that was sent on a free connection at *now_ns*."""
        self._second(intended_ns).late_us.append((now_ns - intended_ns) // NS_PER_US)

    def queued(self, intended_ns: int) -> None:
        """Count a request for which no connection was free when it was due."""
        self._second(intended_ns).queued += 1

    def answered(self, intended_ns: int, now_ns: int) -> None:
        """Record a complete response with status 200."""
        self._finish(intended_ns, (now_ns - intended_ns) // NS_PER_US)

    def failed(self, intended_ns: int) -> None:
        """Count a broken connection or a response with another status than 200."""
        self._finish(intended_ns, self._timeout_us).errors += 1

    def timed_out(self, intended_ns: int) -> None:
        """Count a request that was not answered within the time-out."""
        self._finish(intended_ns, self._timeout_us).timeouts += 1

    def completed(self, scheduled_to_ns: int) -> list[SecondOfLoad]:
        """Return and remove the next seconds without pending requests.

        Only seconds that end by *scheduled_to_ns* are complete: no further request is due before.
        """
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

    def _finish(self, intended_ns: int, latency_us: int) -> SecondOfLoad:
        second = self._second(intended_ns)
        second.latency_us.append(latency_us)
        second.pending -= 1
        self.pending -= 1
        return second
