# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Mean of two counters on a page of metrics, of what happened between two requests.

Exporters that have no histogram have the time of all events and their number, both from the start
of the service on.
"""

from collections.abc import Mapping
import math

__all__ = ("CounterWindow", "Counters")

# The counts of the series of one metric, by labels.
Counters = Mapping[tuple[tuple[str, str], ...], float]


class CounterWindow:
    """The last page of two counters."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: tuple[Counters, Counters] | None = None

    def update(self, total: Counters, events: Counters) -> float:
        """Return how much *total* grew per event since the last page.

        NaN without a last page, and without events. A series that has started anew counts from its
        start. One that was not on the last page does not count: postgres_exporter has the 100
        statements that took most time, so an old one can come back.
        """
        before, self._before = self._before, (total, events)
        if before is None:
            return math.nan
        return mean(_growth(before[0], total), _growth(before[1], events))


def mean(total: float, events: float) -> float:
    """Return *total* per event; NaN without events."""
    return total / events if events > 0 else math.nan


def _growth(before: Counters, now: Counters) -> float:
    both = now.keys() & before.keys()
    grown = ((now[each], now[each] - before[each]) for each in both)
    return sum(count if growth < 0 else growth for count, growth in grown)
