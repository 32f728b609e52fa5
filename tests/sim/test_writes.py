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


def observe(name: str, law: LawSettings) -> Run:
    return run(Task(SCENARIOS[name], "objective", partial(for_objective, law=law), 1), 180, 60)


@pytest.mark.parametrize("name", ["square", "load-steps"])
def test_small_changes_soon_after_another_one_are_left_out(name: str) -> None:
    steady, restless = observe(name, LAW), observe(name, replace(LAW, steady_grants=False))
    assert steady.writes < 0.75 * restless.writes
    assert steady.work_cpus > 0.9 * restless.work_cpus
    assert steady.violating <= restless.violating + 0.02
