# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Selection of the demand of a channel among the bids of its loops."""

from controller.core.decision import ChannelState
from controller.core.loop.selector import Bid, choose
from controller.core.model import IndicatorName


def bid(demand: float, state: ChannelState = ChannelState.SQUEEZE, deviation: float = 0.0) -> Bid:
    return Bid("web", IndicatorName.RUNQ_P99, demand, deviation, state)


def test_the_largest_demand_wins_and_other_causes_count_only_without_one() -> None:
    assert choose([]).wanted == 0.0
    assert choose([bid(0.3), bid(1.7), bid(-4.0)]).wanted == 1.0
    assert choose([bid(0.3), bid(0.9, ChannelState.SELF)]).wanted == 0.3
    choice = choose(
        [bid(-0.1), bid(0.9, ChannelState.SELF), bid(0.9, ChannelState.STEAL, deviation=1.0)]
    )
    assert choice.wanted == 0.0
    assert choice.state is ChannelState.STEAL
