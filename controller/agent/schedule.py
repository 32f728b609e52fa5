# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When a look is due, and whether it makes a tick.

A look reads counters and no file; it decides nothing but whether a tick is made. A tick is left out
only if all of this holds:

- In the last tick no service was near its sweet point or without data, nothing was squeezed,
  tried, written or released, no knob of a channel was held, and much memory was available.
- Since then each service waited for CPUs for less than half of what its sweet point allows.
- Since then nothing else came that a tick takes: workloads, a figure of a service, a pause, a
  configuration, a request for a page.
- The last tick is less than a second old, or two seconds while all services are asleep.

Before a look is due, the kernel may cause one, when a service has waited for more than its sweet
point allows. It asks the same question, and a service that was only near its sweet point in the
last tick is no reason. The kernel also tells when the pressure of a service passes
its sweet point, which is a reason in itself.
"""

from collections.abc import Callable
from typing import NamedTuple

from controller.core.looks import Quiet, Strain, TickReason

__all__ = ("Schedule", "Seen", "reason_to_tick")

# Time from one cause of early ticks to the next one, in usual ticks.
_REST_TICKS = 5


class Seen(NamedTuple):
    """What a look has seen that was due ``period_ns`` after the last one.

    ``since_tick_ns`` and ``since_look_ns`` are the times since the last tick, and since the last
    look or tick. ``event`` is the first event that came since; ``None``: there was none. ``woken``:
    it was not due, but the kernel or a figure caused it.
    """

    period_ns: int
    since_tick_ns: int
    since_look_ns: int
    event: TickReason | None = None
    woken: bool = False


def reason_to_tick(
    quiet: Quiet, seen: Seen, waits_more: Callable[[Quiet], bool]
) -> TickReason | None:
    """Return why a tick has to be made now; ``None``: it is left out.

    *waits_more* returns whether a workload exceeds a limit. Of several reasons the one that says
    most about a service comes first.
    """
    if quiet.reason is not None:
        return quiet.reason
    if waits_more(quiet):
        return TickReason.WAITS
    if seen.event is not None:
        return seen.event
    if quiet.strain and not seen.woken:
        return TickReason.NEAR
    if seen.since_look_ns > 2 * seen.period_ns:
        return TickReason.LATE
    return TickReason.INTERVAL if seen.since_tick_ns >= quiet.longest_ns else None


class Schedule:
    """When the next look is due: ``due_ns``, CLOCK_MONOTONIC.

    After a tick that found more *strain* than the one before, the next two come early, an eighth of
    *tick_ns* apart, so that a squeeze, which needs three, need not wait for them. The same strain
    has this effect once in ``_REST_TICKS``: a service around its sweet point would have it all the
    time. *tick_ns* is the configured time between two ticks. ``was_woken``: the last tick was not
    due.
    """

    __slots__ = ("_caused", "_caused_ns", "_early", "_strain", "due_ns", "was_woken")

    def __init__(self, due_ns: int) -> None:
        self._early = 0
        # The strain that caused the last early ticks, and when.
        self._caused, self._caused_ns = Strain.WELL, due_ns
        self._strain = Strain.HIGH
        self.due_ns = due_ns
        self.was_woken = False

    def pass_due(self, period_ns: int, tick_ns: int, *, strain: Strain) -> None:
        """Go on from ``due_ns``, at which there was a look; looks are *period_ns* apart.

        *strain* is what the last tick found.
        """
        self._take(strain, self.due_ns, tick_ns)
        self.was_woken = False
        self.due_ns += tick_ns // 8 if self._early else period_ns

    def pass_woken(self, now_ns: int, tick_ns: int, *, strain: Strain) -> None:
        """Take a tick at *now_ns* that was not due.

        Also if none comes early, the next look is no further than half of *tick_ns*: what was
        seen may not show yet. And it is no nearer than a quarter.
        """
        self._take(strain, now_ns, tick_ns)
        self.was_woken = True
        if self._early:
            self.due_ns = now_ns + tick_ns // 8
        else:
            self.due_ns = min(max(self.due_ns, now_ns + tick_ns // 4), now_ns + tick_ns // 2)

    def _take(self, strain: Strain, now_ns: int, tick_ns: int) -> None:
        if now_ns - self._caused_ns >= _REST_TICKS * tick_ns:
            self._caused = Strain.WELL
        if strain > max(self._strain, self._caused):
            self._early, self._caused, self._caused_ns = 2, strain, now_ns
        else:
            self._early = max(0, self._early - 1) if strain else 0
        self._strain = strain
