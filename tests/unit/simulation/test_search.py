# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from functools import partial

from controller.simulation.policies.fixed import Fixed
from controller.simulation.run import Task, run
from controller.simulation.scenarios import SCENARIOS
from controller.simulation.search import Budget, best_variant, find_quotas

BUDGET = Budget(seconds=15, warm_up=5)


def ignore(_: str) -> None:
    pass


def test_the_quotas_limit_the_culprit_and_keep_the_objective() -> None:
    quotas = find_quotas(SCENARIOS["bandwidth"], BUDGET, ignore)
    assert quotas[0] < 8.0
    assert min(quotas[1:]) > quotas[0]
    factory = partial(Fixed, idle=True, quotas=quotas)
    result = run(Task(SCENARIOS["bandwidth"], "oracle", factory, 2), 15, 5)
    assert result.violating <= 0.1


def test_nothing_is_limited_without_harm() -> None:
    assert min(find_quotas(SCENARIOS["harmless"], BUDGET, ignore)) == float("inf")


def test_the_best_variant_keeps_the_objective_with_most_work() -> None:
    variants = {
        name: partial(Fixed, idle=True, quotas=quotas)
        for name, quotas in (
            ("all free", (8.0, 8.0, 8.0)),
            ("all limited", (0.5, 2.0, 2.0)),
            ("culprit limited", (0.5, 8.0, 8.0)),
        )
    }
    best = best_variant(SCENARIOS["bandwidth"], variants, BUDGET, ignore)
    assert best == "culprit limited"


def test_a_variant_without_work_does_not_count() -> None:
    variants = {
        "nothing": partial(Fixed, idle=True, quotas=(0.01, 0.01, 0.01)),
        "everything": partial(Fixed, idle=True),
    }
    assert best_variant(SCENARIOS["bandwidth"], variants, BUDGET, ignore) == "everything"
