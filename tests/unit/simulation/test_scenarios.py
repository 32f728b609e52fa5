# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from functools import partial

import pytest

from controller.simulation.policies.fixed import Fixed
from controller.simulation.run import Task, run
from controller.simulation.scenarios import GROUPS, SCENARIOS

SECONDS = 240


@pytest.mark.parametrize("name", SCENARIOS)
def test_jobs_keep_their_names(name: str) -> None:
    scenario = SCENARIOS[name]
    names = [each.name for each in scenario.jobs_at(0.0)]
    for second in range(SECONDS):
        assert [each.name for each in scenario.jobs_at(float(second))] == names


def test_every_scenario_is_in_one_group() -> None:
    members = [name for names in GROUPS.values() for name in names]
    assert sorted(members) == sorted(SCENARIOS)


def violating(name: str, idle: bool, seconds: int = 12, warm_up: int = 4) -> float:
    task = Task(SCENARIOS[name], "policy", partial(Fixed, idle=idle), 1)
    return run(task, seconds, warm_up).violating


@pytest.mark.parametrize("name", ["bandwidth", "smt", "cache", "sensitive", "eight-jobs", "vm"])
def test_sched_idle_alone_does_not_protect(name: str) -> None:
    assert violating(name, idle=True) > 0.5


def test_harmless_jobs_need_sched_idle_only() -> None:
    assert violating("harmless", idle=True) == 0.0
