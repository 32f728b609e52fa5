# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from functools import partial

import pytest

from controller.simulation.loads import steady
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


@pytest.mark.parametrize("name", ["harmless", "ordinary"])
def test_harmless_jobs_need_sched_idle_only(name: str) -> None:
    assert violating(name, idle=True) == 0.0


@pytest.mark.parametrize("name, load", [("load-steps", 0.9), ("square", 0.8), ("bursty", 0.85)])
def test_the_objective_can_be_kept_beside_harmless_jobs(name: str, load: float) -> None:
    scenario = replace(SCENARIOS[name], jobs_at=SCENARIOS["harmless"].jobs_at, load=steady(load))
    task = Task(scenario, "policy", partial(Fixed, idle=True), 1)
    assert run(task, seconds=30, warm_up=10).violating <= 0.05


@pytest.mark.parametrize("name", ["self-slow-1.4", "self-slow-1.8", "overload"])
def test_no_squeeze_helps_against_a_service_s_own_fault(name: str) -> None:
    quotas = partial(Fixed, idle=True, quotas=(0.01, 0.01, 0.01))
    task = Task(SCENARIOS[name], "policy", quotas, 1)
    assert run(task, seconds=99, warm_up=91).violating > 0.5


@pytest.mark.parametrize("name", ["self-slow-1.4", "overload"])
def test_services_are_well_before_the_onset(name: str) -> None:
    assert violating(name, idle=True, seconds=40, warm_up=4) <= 0.05


@pytest.mark.parametrize("name", GROUPS["own-fault"])
def test_services_suffer_by_their_own_fault(name: str) -> None:
    start = 4 if name.startswith("throttled") else 91
    assert violating(name, idle=True, seconds=start + 8, warm_up=start) > 0.5
