# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What holds on every node at request level, with every profile, however senseless."""

import math
from random import Random

import pytest

from controller.core.decision import Plan
from controller.simulation.plant import Plant
from controller.simulation.policies.planned import Planned
from tests.sim.random_nodes import ASLEEP, random_profile, random_scenario

QUIET_S, END_S = 15.0, 55.0
# So long after the last deviation above 0 a demand may still rise: the low-pass filters are full.
SETTLE_S = 8.0
FIRST_JOB = 10_000


def check_plan(plan: Plan, names: list[str]) -> None:
    """Every figure is finite and in its range, and jobs that never ran are not accused."""
    for demand in plan.demands:
        assert 0 <= demand.applied <= 1
        assert 0 <= demand.wanted <= 1
    for loop in plan.loops:
        assert 0 <= loop.demand <= 1
        figures = (loop.value, loop.sweet_point, loop.deviation, loop.filtered_deviation)
        assert all(each is None or math.isfinite(each) for each in figures)
    for cause in plan.causes:
        assert cause.be_share is None or 0 <= cause.be_share <= 1
        assert sum(each.share for each in cause.culprits) <= 1.001
    accused = [each.cgroup for cause in plan.causes for each in cause.culprits]
    accused += [plan.eviction.cgroup] if plan.eviction else []
    assert not any(names[each.id - FIRST_JOB].startswith(ASLEEP) for each in accused)


def check_knobs(plant: Plant, names: list[str]) -> None:
    knobs, machine = plant.knobs, plant.machine
    assert 1 <= knobs.ways <= machine.ways
    assert 10 <= knobs.mba <= 100
    for name, quota in zip(names, knobs.quota, strict=True):
        assert quota >= 0.001
        assert quota <= machine.cpus or math.isinf(quota)
        assert not (name.startswith(ASLEEP) and quota < math.inf)


def observe(seed: int) -> None:
    """Run the planner on the node *seed* and check every tick."""
    random = Random(seed)
    scenario = random_scenario(random, QUIET_S)
    profiles = [random_profile(random, each) for each in scenario.services]
    plant = Plant(scenario, seed, END_S)
    names = [each.name for each in plant.jobs]
    planned = Planned(plant, profiles)
    suffered_s, least = 0.0, [1.0] * 2
    for step in range(round(END_S * 10)):
        if step % 2 == 0:
            planned.step()
            plan = planned.plan
            assert plan is not None
            check_plan(plan, names)
            check_knobs(plant, names)
            if any((loop.deviation or 0.0) > 0 for loop in plan.loops):
                suffered_s, least = plant.time_s, [1.0] * 2
            elif plant.time_s > suffered_s + SETTLE_S:
                least = [min(at, d.applied) for at, d in zip(least, plan.demands, strict=False)]
                assert all(
                    d.applied <= at + 0.02 for at, d in zip(least, plan.demands, strict=False)
                )
        plant.advance()


@pytest.mark.parametrize("seed", range(4))
def test_figures_knobs_and_accusations(seed: int) -> None:
    observe(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4, 10))
def test_figures_knobs_and_accusations_of_more_nodes(seed: int) -> None:
    observe(seed)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(100))
def test_figures_knobs_and_accusations_on_ten_thousand_nodes(block: int) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        observe(seed)
