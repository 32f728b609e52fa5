# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A comparison: scenarios times policies times seeds, with settings that were searched first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
import multiprocessing
import signal

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


@dataclass(frozen=True, slots=True)
class _Cell:
    """A policy in a scenario, with all seeds."""

    scenario: Scenario
    policy: str
    entry: Entry
    seeds: Sequence[int]
    budget: Budget
    tune: bool


def compare(
    scenarios: Sequence[Scenario],
    policies: Mapping[str, Entry],
    *,
    seeds: Sequence[int],
    budget: Budget,
    tune: bool,
    progress: Callable[[str], None],
    processes: int = 1,
) -> Comparison:
    """Run every policy in every scenario with every seed, in some *processes*.

    The oracle's quotas are always searched, the settings of policies with variants if *tune*.
    *progress* gets a line before each run; of several processes, one after each policy in a
    scenario.
    """
    result = Comparison({each.name: each for each in scenarios})
    cells = [
        _Cell(scenario, name, entry, seeds, budget, tune)
        for scenario in scenarios
        for name, entry in policies.items()
    ]
    for cell, (settings, runs) in zip(cells, _results(cells, processes, progress), strict=True):
        result.runs.extend(runs)
        if settings:
            result.settings[cell.scenario.name, cell.policy] = settings
    return result


def _results(
    cells: Sequence[_Cell], processes: int, progress: Callable[[str], None]
) -> Iterator[tuple[str, list[Run]]]:
    if min(processes, len(cells)) <= 1:
        for number, cell in enumerate(cells, 1):
            head = f"{number}/{len(cells)} {cell.scenario.name} {cell.policy}"
            yield _result(cell, partial(_show, progress, head))
        return
    # Forked, because scenarios hold functions that cannot be sent.
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, initializer=_begin, initargs=(cells,)) as pool:
        results = pool.imap(_numbered, range(len(cells)), chunksize=1)
        for number, result in enumerate(results, 1):
            progress(f"{number}/{len(cells)} done")
            yield result


# In a process of the pool: the cells, as they were when it was forked.
_cells: Sequence[_Cell] = ()


def _begin(cells: Sequence[_Cell]) -> None:
    global _cells
    _cells = cells
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the pool


def _numbered(number: int) -> tuple[str, list[Run]]:
    return _result(_cells[number], lambda text: None)


def _result(cell: _Cell, progress: Callable[[str], None]) -> tuple[str, list[Run]]:
    """Return the settings in words if they were searched, and the runs."""
    scenario, name, budget = cell.scenario, cell.policy, cell.budget
    factory, settings = _factory(scenario, name, cell.entry, budget, cell.tune, progress)
    runs = []
    for seed in cell.seeds:
        progress(f"seed {seed}")
        task = Task(scenario, name, factory, seed)
        runs.append(run(task, budget.seconds, budget.warm_up))
    return settings, runs


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
