# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort's part of what hurts a service, as evictions and explanations have it."""

from dataclasses import replace
from typing import Any, cast

import pytest

from controller.core.channels.ladder import TickContext
from controller.core.eviction.causes import _share, _share_at_stop
from controller.core.harm.harm_finder import HarmFinder
from controller.core.harm.harm_model import HarmModel
from controller.core.indicators.counters import CpuUse
from controller.core.loop.channel_loops import ChannelLoops
from controller.core.loop.service_loops import ServiceLoops
from controller.core.model import CgroupId, Channel
from tests.support.loops.closed_loop import make_settings, make_spec

JOB = CgroupId("cpu", 1)


class FakeTracker:
    def __init__(self, cpus: float) -> None:
        self.use = CpuUse()
        self.use.cpus[JOB] = cpus


def context(cpus: float = 4.0) -> TickContext:
    """A context in which a job certainly slows the service down, by up to 40 % with 4 CPUs."""
    model, finder = HarmModel(), HarmFinder()
    for tick in range(400):
        use = 4.0 * (tick // 10 % 2)
        model.update(0.1 * use, 0.0, {JOB: use}, 0.2)
    finder._models["web"] = model
    unused = cast("Any", None)
    tracker = cast("Any", FakeTracker(cpus))
    return TickContext(0, 0.2, False, tracker, unused, unused, unused, finder)


def loops(excess: float | None) -> ChannelLoops:
    """Loops of a cache channel with a service whose raw deviation is *excess*; ``None``: none."""
    spec = replace(make_spec(), channel=Channel.CACHE)
    service = ServiceLoops("web", Channel.CACHE)
    service.set_specs([spec], 0.0)
    service._loops[0].excess = excess
    found = ChannelLoops(Channel.CACHE, make_settings())
    found._services["web"] = service
    return found


def test_certain_harm_is_a_part_of_the_excess() -> None:
    small, large = (_share(loops(excess), "web", context()) for excess in (0.1, 10.0))
    assert small == 1.0
    assert large is not None and 0 < large < 0.2


@pytest.mark.parametrize("excess", [-1.0, 0.1])
def test_a_tick_near_the_sweet_point_does_not_make_a_small_part_a_large_one(excess: float) -> None:
    found = loops(excess)
    found._services["web"]._loops[0].filter.value = 2.0
    share = _share(found, "web", context())
    assert share is not None
    assert share < 0.5


@pytest.mark.parametrize("excess", [None, -1.0, 0.0])
def test_without_an_excess_there_is_no_part_of_it(excess: float | None) -> None:
    assert _share(loops(excess), "web", context()) is None


def test_an_eviction_rests_on_the_harm_of_the_present_use() -> None:
    """Vector code moves no data: the share of the traffic does not limit that of certain harm."""
    whole = _share(loops(1.0), "web", context())
    assert whole is not None and whole > 0.1
    assert _share_at_stop(loops(1.0), "web", context()) == whole
    assert _share_at_stop(loops(1.0), "web", context(1.0)) == pytest.approx(whole / 4)
    assert _share_at_stop(loops(1.0), "web", context(0.0)) == 0.0
