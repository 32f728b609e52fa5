# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The override selector: of all loops of a channel, the one that wants most decides."""

from collections.abc import Iterable
from typing import NamedTuple

from controller.core.decision import ChannelState
from controller.core.model import IndicatorName

__all__ = ("Bid", "Choice", "choose")


class Bid(NamedTuple):
    """What one loop asks for. Only SQUEEZE and FREE may win; other states say why not."""

    service: str
    indicator: IndicatorName
    demand: float
    deviation: float
    state: ChannelState


class Choice(NamedTuple):
    """The demand in [0, 1] of a channel, the loop it comes from, and why it is not higher."""

    wanted: float
    winner: Bid | None
    state: ChannelState


def choose(bids: Iterable[Bid]) -> Choice:
    """Return the largest demand; without one that may act, the most deviating loop's excuse."""
    winner: Bid | None = None
    excused: Bid | None = None
    for bid in bids:
        if bid.state in (ChannelState.SQUEEZE, ChannelState.FREE):
            if winner is None or bid.demand > winner.demand:
                winner = bid
        elif excused is None or bid.deviation > excused.deviation:
            excused = bid
    wanted = min(1.0, max(0.0, winner.demand)) if winner else 0.0
    if wanted > 0:
        return Choice(wanted, winner, ChannelState.SQUEEZE)
    if excused is not None:
        return Choice(0.0, excused, excused.state)
    return Choice(0.0, winner, ChannelState.FREE)
