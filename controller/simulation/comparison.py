# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A comparison: scenarios times policies times seeds, with settings that were searched first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from controller.simulation.model import Scenario
from controller.simulation.policies.fixed import Fixed
from controller.simulation.policies.policy import Factory
from controller.simulation.policies.registry import ORACLE, Entry
from controller.simulation.run import Run, Task, run
from controller.simulation.search import Budget, best_variant, find_quotas

__all__ = ("Comparison", "compare")


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs; ``settings`` in words of each scenario and policy whose settings were searched."""

    scenarios: Mapping[str, Scenario]
    runs: list[Run] = field(default_factory=list)
    settings: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def titles(self) -> Mapping[str, str]:
        """The titles of the scenarios by name."""
        return {name: each.title for name, each in self.scenarios.items()}


def compare(
    scenarios: Sequence[Scenario],
    policies: Mapping[str, Entry],
    *,
    seeds: Sequence[int],
    budget: Budget,
    tune: bool,
    progress: Callable[[str], None],
) -> Comparison:
    """Run every policy in every scenario with every seed.

    The oracle's quotas are always searched, the settings of policies with variants if *tune*.
    *progress* gets a line before each run.
    """
    result = Comparison({each.name: each for each in scenarios})
    total = len(scenarios) * len(policies)
    for scenario in scenarios:
        for name, entry in policies.items():
            number = len({(each.scenario, each.policy) for each in result.runs}) + 1
            show = partial(_show, progress, f"{number}/{total} {scenario.name} {name}")
            factory, settings = _factory(scenario, name, entry, budget, tune, show)
            if settings:
                result.settings[scenario.name, name] = settings
            for seed in seeds:
                show(f"seed {seed}")
                task = Task(scenario, name, factory, seed)
                result.runs.append(run(task, budget.seconds, budget.warm_up))
    return result


def _factory(
    scenario: Scenario,
    name: str,
    entry: Entry,
    budget: Budget,
    tune: bool,
    progress: Callable[[str], None],
) -> tuple[Factory, str]:
    """Return how the policy is made, and the settings in words if they were searched."""
    if name == ORACLE:
        quotas = find_quotas(scenario, budget, progress)
        return partial(Fixed, idle=True, quotas=quotas), ", ".join(f"{each:g}" for each in quotas)
    if tune and entry.variants:
        best = best_variant(scenario, entry.variants, budget, progress)
        return entry.variants[best], best
    return entry.factory, ""


def _show(progress: Callable[[str], None], prefix: str, text: str) -> None:
    progress(f"{prefix} {text}")
