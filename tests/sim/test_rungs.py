# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which rungs of the cache channel's ladder limit the jobs, on a node at request level."""

from functools import partial

import pytest

from controller.core.settings import LawSettings
from controller.simulation.policies.registry import for_objective
from controller.simulation.run import Run, Task, run
from controller.simulation.scenarios import SCENARIOS
from tests.plant.agent import Setup
from tests.plant.run import LAW as LAW_POLICY
from tests.plant.run import Job
from tests.plant.run import run as run_on_plant
from tests.support.loops.closed_loop import LAW
from tests.support.loops.resource_loop import IN_ORDER


def observe(name: str, law: LawSettings, seconds: int) -> Run:
    task = Task(SCENARIOS[name], "objective", partial(for_objective, law=law), 1)
    return run(task, seconds, min(60, 2 * seconds // 5))


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("sensitive", 100),
        pytest.param("sensitive", 240, marks=pytest.mark.thorough),
        pytest.param("bandwidth", 240, marks=pytest.mark.thorough),
    ],
)
def test_a_streamer_is_limited_by_its_quota_in_the_end(name: str, seconds: int) -> None:
    """Throttled by memory bandwidth, it would keep CPUs that the others can use."""
    tried, in_order = (observe(name, law, seconds) for law in (LAW, IN_ORDER))
    assert tried.work_cpus > 1.1 * in_order.work_cpus
    assert tried.violating <= in_order.violating + 0.005


# In the first one cache ways cost hardly any work, in the second the work changes.
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cache", "character-changes"])
def test_a_beginning_with_the_quota_costs_little_where_the_other_rungs_are_right(name: str) -> None:
    tried, in_order = (observe(name, law, 240) for law in (LAW, IN_ORDER))
    assert tried.work_cpus > 0.9 * in_order.work_cpus
    assert tried.violating <= in_order.violating + 0.01


@pytest.mark.parametrize("name", ["two-hogs", "thrash"])
def test_resctrl_costs_no_work_where_a_quota_is_the_better_knob(name: str) -> None:
    with_it, without = (
        run_on_plant(Job(name, LAW_POLICY, 1, Setup(resctrl=each)), 120, 40)
        for each in (True, False)
    )
    assert with_it.work_cpus >= 0.97 * without.work_cpus
    assert with_it.violated_percent <= without.violated_percent + 1.5
