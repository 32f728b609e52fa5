# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cache, network, memory and disk loops on plants with noise, dead time and unexpected gains."""

from collections.abc import Callable
from dataclasses import replace
import itertools
import statistics

import pytest

from controller.core.model import Knob, KnobValue
from tests.sim.plants import (
    CacheNode,
    DiskNode,
    DiskWaitNode,
    MemoryNode,
    NetworkNode,
    ResourceNode,
)
from tests.support.loops.closed_loop import LAW, TICKS_PER_S, ClosedLoop, filtered
from tests.support.loops.resource_loop import (
    KINDS,
    channel_of,
    closed,
    demands,
    resource_settings,
    settings_of,
    writes,
)

GRADED = (NetworkNode, MemoryNode, DiskNode, DiskWaitNode)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", GRADED)
def test_a_graded_knob_settles_within_a_third_of_a_deviation(
    kind: Callable[[int], ResourceNode], seed: int
) -> None:
    loop = closed(kind(seed))
    loop.run(120)
    steady = filtered(loop.run(60))
    assert sum(abs(value) <= 0.3 for value in steady) / len(steady) >= 0.95
    assert abs(statistics.mean(steady)) < 0.15


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("bend", [1.0, 2.0, 3.3])
def test_memory_bandwidth_settles_at_the_setting_next_to_the_sweet_point(
    bend: float, seed: int
) -> None:
    """For all shapes of the percent scale; the quota, the last rung, is needed at first only."""
    node = CacheNode(seed, bend=bend)
    loop = closed(node)
    plans = loop.run(150)
    assert not writes(plans[-60 * TICKS_PER_S :], Knob.CPU_QUOTA)
    assert plans[-1].quota_granted_cpus is None
    assert 10 <= node.percent < 100
    sweet_point = loop.settings.profiles["default"].indicators[0].sweet_point
    # The setting is strict enough, and the next looser one is not.
    assert node.cpi_at(node.part_at(node.percent)) <= sweet_point * 1.1**0.3
    assert node.cpi_at(node.part_at(node.percent + 10)) > sweet_point * 1.1**-0.3


@pytest.mark.parametrize("measured", [True, False])
def test_without_a_measured_bandwidth_the_percent_scale_is_used(measured: bool) -> None:
    node = CacheNode(1, bend=2.0, measured=measured)
    loop = closed(node)
    loop.run(150)
    assert node.value <= 1.25 * 1.1**0.3
    assert node.percent in (20, 30, 40)


# The gain of the plant differs by up to 4.
@pytest.mark.parametrize("slope", [0.25, pytest.param(4.0, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_limit_cycle_without_noise_for_all_gains(kind: type[ResourceNode], slope: float) -> None:
    node = kind(1, slope=slope, noise=0.0)
    loop = closed(node)
    loop.run(150)
    plans = loop.run(250)
    # A setting that was too loose is tried again, at growing intervals.
    assert len(writes(plans)) <= 6
    if kind in GRADED:
        assert all(abs(value) <= 0.3 for value in filtered(plans))


def test_a_looser_setting_is_tried_at_growing_intervals() -> None:
    node = CacheNode(3, bend=3.3, noise=0.0)
    loop = closed(node)
    plans = loop.run(800)
    looser = [
        plan.time_ns
        for plan in plans[60 * TICKS_PER_S :]
        for action in plan.actions
        if action.knob is Knob.MBA and _percent(action.value) > _percent(action.previous)
    ]
    pauses = [later - earlier for earlier, later in itertools.pairwise(looser)]
    assert 2 <= len(looser) <= 6
    assert pauses == sorted(pauses)


def _percent(value: KnobValue) -> int:
    return int(value.split(";")[0].partition("=")[2])


@pytest.mark.parametrize("kind", KINDS)
def test_load_steps(kind: type[ResourceNode]) -> None:
    """Best-effort work stops and all knobs are restored; it returns and is squeezed at once."""
    node = kind(2)
    untouched = settings_of(node)
    wants = node.wants
    loop = closed(node)
    loop.run(60)
    assert settings_of(node) != untouched
    node.wants = [0.0 for _ in wants]
    loop.run(450)
    assert settings_of(node) == untouched
    node.wants = wants
    plans = loop.run(120)
    first = next(index for index, plan in enumerate(plans) if plan.actions)
    assert first <= 2 * TICKS_PER_S
    assert statistics.mean(filtered(plans[-20 * TICKS_PER_S :])) < 0.3


@pytest.mark.parametrize(
    ("kind", "long_s"),
    [
        (CacheNode, 300),
        pytest.param(CacheNode, 1800, marks=pytest.mark.thorough),
        pytest.param(NetworkNode, 300, marks=pytest.mark.thorough),
    ],
)
def test_recovery_after_a_long_time_takes_no_longer_than_after_a_minute(
    kind: type[ResourceNode], long_s: int
) -> None:
    def recovery_ticks(saturated_s: float) -> int:
        node = kind(4)
        node.scale = 50.0
        law = replace(LAW, verify_squeeze=False)
        loop = ClosedLoop(node, resource_settings(node, law=law))
        channel = channel_of(node)
        plans = loop.run(saturated_s)
        assert demands(plans[-1:], channel) == [pytest.approx(1.0, abs=0.02)]
        node.scale = 0.1
        for ticks in range(900 * TICKS_PER_S):
            if demands([loop.step()], channel)[0] < 0.2:
                return ticks
        raise AssertionError("did not recover")

    assert recovery_ticks(long_s) <= recovery_ticks(90) + 20 * TICKS_PER_S
