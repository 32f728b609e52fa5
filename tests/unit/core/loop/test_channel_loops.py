# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Assignment of indicators to channels, and selection of the demand of a channel."""

from dataclasses import replace

from controller.core.decision import ChannelState
from controller.core.loop.channel_loops import ChannelLoops, IndicatorRouting, choose
from controller.core.loop.service_loops import Bid
from controller.core.model import CgroupId, Channel, IndicatorName, QosClass, Workload
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import make_settings, make_spec


def test_the_own_figure_of_a_service_begins_on_the_cache_channel() -> None:
    own = replace(make_spec(), name=IndicatorName.SERVICE)
    profile = replace(
        make_settings().profiles["default"], indicators=(own,), channels=tuple(Channel)
    )
    web = Workload("web", CgroupId("cpu", 1), "/web", QosClass.LS, "web", "default")
    settings = make_settings()
    loops = {channel: ChannelLoops(channel, settings) for channel in Channel}
    specs = IndicatorRouting().update(WorkloadIndex([web], {"default": profile}), loops, 0)
    assert {channel: dict(each) for channel, each in specs.items() if each} == {
        Channel.CACHE: {"web": (own,)}
    }


def test_the_own_figure_leaves_a_channel_that_the_profile_no_longer_has() -> None:
    own = replace(make_spec(), name=IndicatorName.SERVICE)
    settings = make_settings()
    web = Workload("web", CgroupId("cpu", 1), "/web", QosClass.LS, "web", "default")
    loops = {channel: ChannelLoops(channel, settings) for channel in Channel}
    routing = IndicatorRouting()

    def channels_of(*channels: Channel) -> list[Channel]:
        profile = replace(settings.profiles["default"], indicators=(own,), channels=channels)
        specs = routing.update(WorkloadIndex([web], {"default": profile}), loops, 0)
        return [channel for channel, each in specs.items() if each]

    assert channels_of(Channel.CPU, Channel.IO) == [Channel.CPU]
    assert channels_of(Channel.CACHE, Channel.IO) == [Channel.CACHE]
    assert channels_of(Channel.IO) == [Channel.IO]
    assert channels_of(Channel.CPU, Channel.IO) == [Channel.IO], "it stays where it may stay"


def bid(demand: float, state: ChannelState = ChannelState.SQUEEZE, deviation: float = 0.0) -> Bid:
    return Bid("web", IndicatorName.RUNQ_P99, demand, deviation, state)


def test_the_largest_demand_wins_and_other_causes_count_only_without_one() -> None:
    assert choose(Channel.CPU, []).wanted == 0.0
    assert choose(Channel.CPU, [bid(0.3), bid(1.7), bid(-4.0)]).wanted == 1.0
    assert choose(Channel.CPU, [bid(0.3), bid(0.9, ChannelState.SELF)]).wanted == 0.3
    choice = choose(
        Channel.CPU,
        [bid(-0.1), bid(0.9, ChannelState.SELF), bid(0.9, ChannelState.STEAL, deviation=1.0)],
    )
    assert choice.wanted == 0.0
    assert choice.state is ChannelState.STEAL
