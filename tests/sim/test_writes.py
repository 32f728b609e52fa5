# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How often quotas are written on a node at request level, where they follow estimates of harm."""

from dataclasses import replace
from functools import partial

import pytest

from controller.core.settings import LawSettings
from controller.simulation.policies.registry import for_objective
from controller.simulation.run import Run, Task, run
from controller.simulation.scenarios import SCENARIOS
from tests.support.loops.closed_loop import LAW


def observe(name: str, law: LawSettings, seconds: int) -> Run:
    task = Task(SCENARIOS[name], "objective", partial(for_objective, law=law), 1)
    return run(task, seconds, min(60, 2 * seconds // 5))


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("square", 100),
        pytest.param("load-steps", 180, marks=pytest.mark.thorough),
        pytest.param("square", 180, marks=pytest.mark.thorough),
    ],
)
def test_small_changes_soon_after_another_one_are_left_out(name: str, seconds: int) -> None:
    laws = LAW, replace(LAW, steady_grants=False)
    steady, restless = (observe(name, law, seconds) for law in laws)
    assert steady.writes < 0.75 * restless.writes
    assert steady.work_cpus > 0.9 * restless.work_cpus
    assert steady.violating <= restless.violating + 0.02
