# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The margin below an objective, beside batch work on a node at request level."""

from dataclasses import replace
from functools import partial

import pytest

from controller.config.sections.law import WHOLE_LAW
from controller.core.settings import LawSettings
from controller.simulation.policies.registry import for_objective
from controller.simulation.run import Run, Task, run
from controller.simulation.scenarios import SCENARIOS

ADAPTED = replace(WHOLE_LAW, rungs_by_work=False)
FIXED = replace(ADAPTED, margin_by_scatter=False)


def runs(scenario: str, seeds: tuple[int, ...], seconds: int, law: LawSettings) -> list[Run]:
    factory = partial(for_objective, law=law)
    return [
        run(Task(SCENARIOS[scenario], "", factory, seed), seconds, min(60, seconds // 3))
        for seed in seeds
    ]


@pytest.mark.parametrize(
    ("scenario", "seeds", "seconds"),
    [
        ("load-steps", (22,), 120),
        pytest.param("load-steps", (21,), 240, marks=pytest.mark.thorough),
        pytest.param("bursty", (22,), 240, marks=pytest.mark.thorough),
    ],
)
def test_a_figure_that_scatters_more_keeps_a_larger_distance(
    scenario: str, seeds: tuple[int, ...], seconds: int
) -> None:
    adapted, fixed = (runs(scenario, seeds, seconds, law) for law in (ADAPTED, FIXED))
    missed = sum(each.violating for each in adapted) / sum(each.violating for each in fixed)
    work = sum(each.work_cpus for each in adapted) / sum(each.work_cpus for each in fixed)
    assert missed < 0.6
    assert work > 0.85


def test_without_harm_nothing_is_taken() -> None:
    assert [each.writes for each in runs("harmless", (21, 22), 100, ADAPTED)] == [0, 0]
