# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The best settings of a policy for a scenario, and the best constant quotas of its jobs.

Both are searched with seeds that no comparison uses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
import math

import numpy as np

from controller.simulation.model import Job, Scenario
from controller.simulation.policies.fixed import Fixed
from controller.simulation.policies.policy import Factory
from controller.simulation.run import Run, Task, run

__all__ = ("Budget", "best_variant", "find_quotas")

_SEED = 1_000_001
# A seed's runs of a policy may violate this often and still count as keeping the objective.
_ACCEPTED = 0.01
# A policy that leaves less of sched-idle's work has not solved anything.
_LEAST_WORK = 0.05
# Quotas that are tried, as parts of the CPUs that a job has threads for.
_LEVELS = (math.inf, 0.6, 0.45, 0.3, 0.2, 0.12, 0.06, 0.03, 0.01)
_WORST_EXCESS = 5.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Budget:
    """The length of a run and of its start that does not count, in seconds."""

    seconds: int
    warm_up: int


def best_variant(
    scenario: Scenario, variants: Mapping[str, Factory], budget: Budget, progress: Progress
) -> str:
    """Return the name of the best of *variants*: fewest violations above 1 %, then most work."""
    free = _try(scenario, "sched-idle", partial(Fixed, idle=True), budget)

    def cost(result: Run) -> tuple[bool, float, float]:
        excess = max(0.0, result.violating - _ACCEPTED)
        return result.work_cpus < _LEAST_WORK * free.work_cpus, excess, -result.work_cpus

    costs = {}
    for name, factory in variants.items():
        progress(name)
        costs[name] = cost(_try(scenario, name, factory, budget))
    return min(costs, key=costs.__getitem__)


def find_quotas(scenario: Scenario, budget: Budget, progress: Progress) -> tuple[float, ...]:
    """Return a constant quota in CPUs for each job that keeps the objective, with most work.

    A greedy search: the job whose next lower quota gains most per work lost is limited further,
    until the objective is kept; then limits that are not needed are loosened again. Equal jobs have
    equal quotas.
    """
    groups = _groups(scenario, budget.seconds)
    levels = [0] * len(groups)

    def attempt(levels: list[int]) -> Run:
        quotas = _quotas(scenario.jobs_at(0.0), groups, levels)
        progress(", ".join(f"{quota:g}" for quota in quotas[:8]))
        return _try(scenario, "oracle", partial(Fixed, idle=True, quotas=quotas), budget)

    now = attempt(levels)
    while now.violating > _ACCEPTED:
        trials = [
            (_raised(levels, index), index)
            for index in range(len(groups))
            if levels[index] + 1 < len(_LEVELS)
        ]
        if not trials:
            break
        results = [(attempt(trial), trial) for trial, _ in trials]
        now, levels = max(results, key=lambda each: _gain(now, each[0]))
    for index in range(len(groups)):
        while levels[index] > 0:
            looser = _raised(levels, index, -1)
            result = attempt(looser)
            if result.violating > max(_ACCEPTED, now.violating):
                break
            if result.work_cpus < now.work_cpus:
                break
            now, levels = result, looser
    return _quotas(scenario.jobs_at(0.0), groups, levels)


def _gain(before: Run, after: Run) -> float:
    """Return by how much the excess over the objective fell, per CPU of work lost."""
    lost = max(0.05, before.work_cpus - after.work_cpus)
    return (_excess(before) - _excess(after)) / lost


def _excess(result: Run) -> float:
    ratios = np.array([each.p99_ratio or 0.0 for each in result.counted])
    return float(np.clip(ratios - 1.0, 0.0, _WORST_EXCESS).mean())


def _groups(scenario: Scenario, seconds: int) -> list[list[int]]:
    """Return the jobs by what they are over time."""
    histories = zip(*(scenario.jobs_at(float(second)) for second in range(seconds)), strict=True)
    groups: dict[tuple[tuple[float, object], ...], list[int]] = {}
    for index, history in enumerate(histories):
        kinds = tuple((each.threads, each.character) for each in history)
        groups.setdefault(kinds, []).append(index)
    return list(groups.values())


def _quotas(jobs: tuple[Job, ...], groups: list[list[int]], levels: list[int]) -> tuple[float, ...]:
    quotas = [math.inf] * len(jobs)
    for group, level in zip(groups, levels, strict=True):
        for index in group:
            quotas[index] = max(0.01, _LEVELS[level] * jobs[index].threads)
    return tuple(quotas)


def _raised(levels: list[int], index: int, by: int = 1) -> list[int]:
    return [level + by * (position == index) for position, level in enumerate(levels)]


def _try(scenario: Scenario, name: str, factory: Factory, budget: Budget) -> Run:
    return run(Task(scenario, name, factory, _SEED), budget.seconds, budget.warm_up)
