# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Assignment of indicators to channels."""

from dataclasses import replace

from controller.core.control.channel_loops import ChannelLoops
from controller.core.control.indicator_routing import IndicatorRouting
from controller.core.model import CgroupId, Channel, IndicatorName, QosClass, Workload
from controller.core.workload_index import WorkloadIndex
from tests.closed_loop import make_settings, make_spec


def test_the_own_figure_of_a_service_has_a_channel_even_without_cpu() -> None:
    own = replace(make_spec(), name=IndicatorName.SERVICE)
    profile = replace(
        make_settings().profiles["default"], indicators=(own,), channels=(Channel.CACHE, Channel.IO)
    )
    web = Workload("web", CgroupId("cpu", 1), "/web", QosClass.LS, "web", "default")
    settings = make_settings()
    loops = {channel: ChannelLoops(channel, settings) for channel in Channel}
    specs = IndicatorRouting().update(WorkloadIndex([web], {"default": profile}), loops, 0)
    assert {channel: dict(each) for channel, each in specs.items() if each} == {
        Channel.CACHE: {"web": (own,)}
    }
