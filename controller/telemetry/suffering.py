# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The services that suffer in a tick, by channel, and what their channel does about it.

How bad, and for how long: metrics, pages and history count with these functions. What is compared
or averaged here are raw values, never a deviation that ended at the limit of its scale.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller.core.decision import Demand, LoopReport, Plan
from controller.core.eviction.causes import depth, raw_deviation, suffers
from controller.core.model import Channel

__all__ = ("OTHER", "SufferingClock", "Suffers", "is_worse", "suffering")

# The state of a service for which its channel did not decide, but for another one.
OTHER = "other"
# A longer time between two plans is a pause of the agent, not a state that lasted.
_LONGEST_NS = 5_000_000_000


class Suffers(NamedTuple):
    """A service above its sweet point: its worst loop, and a ``ChannelState`` or ``OTHER``."""

    loop: LoopReport
    state: str


def suffering(
    loops: Iterable[LoopReport], demands: Iterable[Demand]
) -> dict[tuple[str, Channel], Suffers]:
    """Return the services that suffer, by service and channel; *loops* and *demands* of a plan."""
    worst: dict[tuple[str, Channel], LoopReport] = {}
    for loop in loops:
        if not suffers(loop):
            continue
        known = worst.get((loop.service, loop.channel))
        if known is None or (depth(loop) or 0.0) > (depth(known) or 0.0):
            worst[loop.service, loop.channel] = loop
    decided = {demand.channel: demand for demand in demands} if worst else {}
    found = {}
    for (service, channel), loop in worst.items():
        demand = decided.get(channel)
        own = demand is not None and demand.service == service
        state = str(demand.state) if demand is not None and own else OTHER
        found[service, channel] = Suffers(loop, state)
    return found


class SufferingClock:
    """How long services suffered, from one plan to the next."""

    __slots__ = ("_last_ns", "ran_ns")

    def __init__(self) -> None:
        self._last_ns: int | None = None
        # The time that the plans so far stand for.
        self.ran_ns = 0

    def update(self, plan: Plan, left_out_ns: int = 0) -> Mapping[tuple[str, Channel, str], int]:
        """Return the time (ns) since the last plan of each service that suffers in *plan*.

        Ticks were left out for *left_out_ns* of it, because no service suffered. Keys are service,
        channel, and a ``ChannelState`` or ``OTHER``.
        """
        last_ns = plan.time_ns if self._last_ns is None else self._last_ns
        elapsed_ns = max(0, min(plan.time_ns - last_ns, _LONGEST_NS))
        self._last_ns = plan.time_ns
        self.ran_ns += elapsed_ns
        suffered_ns = max(0, elapsed_ns - left_out_ns)
        return {
            (service, channel, found.state): suffered_ns
            for (service, channel), found in suffering(plan.loops, plan.demands).items()
        }


def is_worse(loop: LoopReport, other: LoopReport) -> bool:
    """Return whether the raw value of *loop* is further beyond its sweet point than *other*'s.

    Values of one indicator are compared themselves, because its sweet point may follow the load.
    """
    if loop.indicator is not other.indicator:
        return (raw_deviation(loop) or 0.0) > (raw_deviation(other) or 0.0)
    if loop.value is None or other.value is None:
        return other.value is None and loop.value is not None
    return loop.value < other.value if _is_inverted(loop) else loop.value > other.value


def _is_inverted(loop: LoopReport) -> bool:
    """Whether less is worse for the indicator of *loop*, such as a rate."""
    deviation = loop.deviation or 0.0
    if loop.value is None or loop.sweet_point is None or not deviation:
        return False
    return (loop.value > loop.sweet_point) is not (deviation > 0)
