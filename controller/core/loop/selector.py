# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Override selector: of all loops of a channel, the one with the largest demand decides."""

from collections.abc import Iterable
from typing import NamedTuple

from controller.core.decision import ChannelState
from controller.core.model import IndicatorName

__all__ = ("Bid", "Choice", "choose")


class Bid(NamedTuple):
    """The demand of one loop.

    Only a bid in state SQUEEZE or FREE takes part in the selection. Any other state is the reason
    why the loop must not act. ``deviation`` is the filtered one.
    """

    service: str
    indicator: IndicatorName
    demand: float
    deviation: float
    state: ChannelState


class Choice(NamedTuple):
    """The demand of a channel in [0, 1], the bid it comes from, and the state of the channel.

    Without a demand ``winner`` and ``state`` are those of the most deviating bid that must not act.
    """

    wanted: float
    winner: Bid | None
    state: ChannelState


def choose(bids: Iterable[Bid]) -> Choice:
    """Select the largest demand; without one, the inhibited bid that deviates most."""
    winner: Bid | None = None
    inhibited: Bid | None = None
    for bid in bids:
        if bid.state in (ChannelState.SQUEEZE, ChannelState.FREE):
            if winner is None or bid.demand > winner.demand:
                winner = bid
        elif inhibited is None or bid.deviation > inhibited.deviation:
            inhibited = bid
    wanted = min(1.0, max(0.0, winner.demand)) if winner else 0.0
    if wanted > 0:
        return Choice(wanted, winner, ChannelState.SQUEEZE)
    if inhibited is not None:
        return Choice(0.0, inhibited, inhibited.state)
    return Choice(0.0, winner, ChannelState.FREE)
