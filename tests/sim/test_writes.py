# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How often quotas are written on a node at request level, where they follow estimates of harm."""

import pytest

from controller.simulation.policies.registry import for_objective
from controller.simulation.run import Task, run
from controller.simulation.scenarios import SCENARIOS


@pytest.mark.parametrize(
    ("name", "seconds", "most_writes", "least_work", "most_violating"),
    [
        ("square", 100, 78, 6.2, 0.08),
        pytest.param("load-steps", 180, 107, 7.0, 0.02, marks=pytest.mark.thorough),
        pytest.param("square", 180, 124, 6.9, 0.02, marks=pytest.mark.thorough),
    ],
)
def test_small_changes_soon_after_another_one_are_left_out(
    name: str, seconds: int, most_writes: int, least_work: float, most_violating: float
) -> None:
    """With all changes there are 104, 143 and 165 writes, for 6.9, 7.8 and 7.7 CPUs of work."""
    task = Task(SCENARIOS[name], "objective", for_objective, 1)
    found = run(task, seconds, min(60, 2 * seconds // 5))
    assert found.writes < most_writes
    assert found.work_cpus > least_work
    assert found.violating <= most_violating
