# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The services that suffer in a tick, by channel, and what their channel does about it."""

from collections.abc import Iterable
from typing import NamedTuple

from controller.core.decision import Demand, IndicatorStatus, LoopReport
from controller.core.model import Channel

__all__ = ("OTHER", "Suffers", "suffering")

# The state of a service for which its channel did not decide, but for another one.
OTHER = "other"
# Below this filtered deviation a loop is within its dead zone.
_LEAST = 0.1


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
        deviation = loop.filtered_deviation
        if deviation is None or deviation < _LEAST or loop.status is not IndicatorStatus.FRESH:
            continue
        known = worst.get((loop.service, loop.channel))
        if known is None or deviation > (known.filtered_deviation or 0.0):
            worst[loop.service, loop.channel] = loop
    decided = {demand.channel: demand for demand in demands} if worst else {}
    found = {}
    for (service, channel), loop in worst.items():
        demand = decided.get(channel)
        own = demand is not None and demand.service == service
        state = str(demand.state) if demand is not None and own else OTHER
        found[service, channel] = Suffers(loop, state)
    return found
