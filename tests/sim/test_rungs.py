# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which rungs of the cache channel's ladder limit the jobs, on a node at request level."""

from functools import partial

import pytest

from controller.core.settings import LawSettings
from controller.simulation.policies.registry import for_objective
from controller.simulation.run import Run, Task, run
from controller.simulation.scenarios import SCENARIOS
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


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("character-changes", 100),
        pytest.param("cache", 240, marks=pytest.mark.thorough),
        pytest.param("character-changes", 240, marks=pytest.mark.thorough),
    ],
)
def test_nothing_is_tried_where_ways_cost_hardly_any_work_or_the_work_changes(
    name: str, seconds: int
) -> None:
    tried, in_order = (observe(name, law, seconds) for law in (LAW, IN_ORDER))
    assert tried.seconds == in_order.seconds
