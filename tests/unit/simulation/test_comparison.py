# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A comparison of policies, in one process and in several."""

from controller.simulation.comparison import compare
from controller.simulation.policies.registry import policies
from controller.simulation.run import Run
from controller.simulation.scenarios import SCENARIOS
from controller.simulation.search import Budget


def test_several_processes_give_the_same_runs() -> None:
    def compared(processes: int) -> list[Run]:
        every = policies()
        result = compare(
            [SCENARIOS["bandwidth"], SCENARIOS["harmless"]],
            {name: every[name] for name in ("sched-idle", "koordinator")},
            seeds=(1, 2),
            budget=Budget(4, 1),
            tune=False,
            progress=lambda text: None,
            processes=processes,
        )
        return result.runs

    assert len(compared(1)) == 8
    assert compared(2) == compared(1)
