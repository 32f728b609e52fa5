# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The quota loop without sched-idle on plants with noise, dead time and unexpected gains."""

from dataclasses import replace
import itertools
import statistics

import pytest

from controller.core.decision import Action, Plan
from controller.core.knob_values import parse_quota
from controller.core.model import Knob, KnobValue
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import (
    LAW,
    TICKS_PER_S,
    ClosedLoop,
    filtered,
    make_settings,
    make_spec,
    with_sweet_point,
)

FLOOR = 0.05


def quotas(plans: list[Plan]) -> list[Action]:
    return [action for plan in plans for action in plan.actions if action.knob is Knob.CPU_QUOTA]


def reversals(values: list[float], step: float) -> int:
    """Return how often *values* change direction by more than *step* (relative)."""
    count, direction, extreme = 0, 0, values[0]
    for value in values:
        if direction >= 0 and value < extreme * (1 - step):
            count, direction, extreme = count + (direction > 0), -1, value
        elif direction <= 0 and value > extreme * (1 + step):
            count, direction, extreme = count + (direction < 0), 1, value
        elif (value > extreme) == (direction > 0):
            extreme = value
    return count


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slope", [1.0, 2.0])
def test_it_settles_and_stays_within_a_third_of_a_deviation(slope: float, seed: int) -> None:
    loop = ClosedLoop(SimulatedNode(seed, Plant(slope=slope, noise=0.2)))
    loop.run(30)
    steady = filtered(loop.run(60))
    inside = sum(abs(value) <= 0.3 for value in steady) / len(steady)
    assert inside >= 0.98
    assert abs(statistics.mean(steady)) < 0.15


@pytest.mark.parametrize("slope", [0.5, 1.0, 2.0, 4.0])
def test_no_limit_cycle_without_noise_for_all_gains(slope: float) -> None:
    """The gain differs by up to 4; after settling the quota moves by a quantum (5 %) at most."""
    plant = Plant(slope=slope, noise=0.0, p99_ns=4e6, p99_at_cpus=0.6)
    loop = ClosedLoop(SimulatedNode(1, plant))
    loop.run(120)
    plans = loop.run(120)
    totals = [plan.quota_granted_cpus or 0.0 for plan in plans]
    assert reversals(totals, 0.06) == 0
    assert len(quotas(plans)) <= 4
    assert all(abs(value) <= 0.3 for value in filtered(plans))


@pytest.mark.parametrize("dead_ticks", [1, 3, 6])
def test_the_loop_is_stable_with_dead_time(dead_ticks: int) -> None:
    plant = Plant(dead_ticks=dead_ticks, noise=0.1, slope=2.0)
    loop = ClosedLoop(SimulatedNode(3, plant))
    loop.run(60)
    steady = filtered(loop.run(120))
    assert statistics.pstdev(steady) < 0.2
    assert abs(statistics.mean(steady)) < 0.15


def test_noise_makes_few_writes() -> None:
    loop = ClosedLoop(SimulatedNode(7, Plant(noise=0.25)))
    loop.run(30)
    plans = loop.run(120)
    # Two workloads; less than one write of each in two seconds.
    assert 0 < len(quotas(plans)) <= 2 * 60


@pytest.mark.parametrize("slope", [1.0, 4.0])
def test_every_write_is_between_the_floor_and_the_original(slope: float) -> None:
    originals = (KnobValue("30000 100000 0"), KnobValue("max 100000 0"))
    node = SimulatedNode(5, Plant(slope=slope, p99_at_cpus=0.1), quotas=originals)
    loop = ClosedLoop(node)
    plans = loop.run(60)
    node.plant = replace(node.plant, p99_ns=1.0)
    plans += loop.run(120)
    for action in quotas(plans):
        cpus = parse_quota(action.value).cpus
        if action.target.id == node.best_effort[0].cgroup.id:
            assert cpus is not None
            assert cpus <= 0.3
        assert cpus is None or cpus >= FLOOR
    assert loop.granted_cpus() == [0.3, None]


def test_the_first_squeeze_takes_effect_at_once() -> None:
    """Best-effort uses far less than its ceiling: the quota starts at the use."""
    plant = Plant(cpus=16, p99_at_cpus=0.3, noise=0.0)
    node = SimulatedNode(1, plant, wants=(0.6, 0.2), request_rate=200.0)
    loop = ClosedLoop(node, make_settings(cpus=16))
    first = next(plan for plan in loop.run(5) if quotas([plan]))
    granted = sum(parse_quota(action.value).cpus or 0.0 for action in quotas([first]))
    assert granted < 0.8


def test_reaction_and_settling_after_a_load_step() -> None:
    node = SimulatedNode(2, wants=(0.0, 0.0))
    loop = ClosedLoop(node)
    loop.run(10)
    node.wants = [1.5, 0.5]
    plans = loop.run(60)
    first = next(index for index, plan in enumerate(plans) if quotas([plan]))
    assert first <= 1 * TICKS_PER_S
    assert node.p99_ns < 4e6
    deviations = filtered(plans)
    assert all(value < 1.0 for value in deviations[8 * TICKS_PER_S :])


@pytest.mark.parametrize("long_s", [600, pytest.param(1800, marks=pytest.mark.thorough)])
def test_recovery_after_a_long_saturation_takes_no_longer_than_after_a_minute(long_s: int) -> None:
    def recovery_ticks(saturated_s: float) -> int:
        node = SimulatedNode(4, Plant(p99_at_cpus=0.005, noise=0.1))
        loop = ClosedLoop(node, make_settings(law=replace(LAW, verify_squeeze=False)))
        plans = loop.run(saturated_s)
        assert plans[-1].demands[0].applied == pytest.approx(1.0, abs=0.01)
        node.plant = replace(node.plant, p99_at_cpus=1.0)
        for ticks in range(120 * TICKS_PER_S):
            if (loop.step().quota_granted_cpus or 0.0) > 0.3:
                return ticks
        raise AssertionError("did not recover")

    assert recovery_ticks(long_s) <= recovery_ticks(60) + 3 * TICKS_PER_S


def test_raising_the_sweet_point_raises_best_effort_work_and_lowering_lowers_it() -> None:
    loop = ClosedLoop(SimulatedNode(6))

    def work(seconds: float) -> float:
        loop.run(30)
        before = loop.node.best_effort_cpu_s
        plans = loop.run(seconds)
        assert abs(statistics.mean(filtered(plans))) < 0.2
        return loop.node.best_effort_cpu_s - before

    strict = work(30)
    loop.reconfigure(with_sweet_point(loop.settings, 8e6))
    lax = work(30)
    loop.reconfigure(with_sweet_point(loop.settings, 2e6))
    strict_again = work(30)
    assert lax > 2 * strict
    assert strict_again == pytest.approx(strict, rel=0.3)


def test_best_effort_is_free_again_when_the_deviation_ends() -> None:
    node = SimulatedNode(8)
    loop = ClosedLoop(node)
    loop.run(30)
    assert loop.granted_cpus() != [None, None]
    node.plant = replace(node.plant, p99_ns=1e3)
    plans = loop.run(120)
    assert loop.granted_cpus() == [None, None]
    assert plans[-1].quota_granted_cpus is None
    assert node.value(node.best_effort[0], Knob.CPU_QUOTA) == KnobValue("max 100000 0")


def test_a_harmful_release_is_repeated_at_growing_intervals() -> None:
    """Without a quota the latency is eight times that at the ceiling; the release must not flap."""
    plant = Plant(p99_ns=1.2e6, p99_at_cpus=1.5, free_jump=8.0, noise=0.0)
    loop = ClosedLoop(SimulatedNode(9, plant))
    plans = loop.run(1800)
    freed = [
        plan.time_ns
        for before, plan in itertools.pairwise(plans)
        if before.quota_granted_cpus is not None and plan.quota_granted_cpus is None
    ]
    assert 2 <= len(freed) <= 8
    pauses = [later - earlier for earlier, later in itertools.pairwise(freed)]
    assert pauses == sorted(pauses)


def test_without_a_dead_zone_the_quota_varies_by_at_most_a_quantum() -> None:
    """An integrator before a quantised knob never settles, but must not oscillate widely."""
    loop = ClosedLoop(SimulatedNode(3, Plant(noise=0.0)), make_settings(make_spec(dead_zone=0.0)))
    loop.run(120)
    totals = [plan.quota_granted_cpus or 0.0 for plan in loop.run(60)]
    assert max(totals) < 1.15 * min(totals)
