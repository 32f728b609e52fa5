# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A service that suffers mostly from other causes: best-effort work gives what it can, not all."""

from dataclasses import replace

import pytest

from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import ClosedLoop

# Three times the sweet point of 2 ms are there without best-effort work, and a third more with it.
MOSTLY_OTHERS = Plant(
    quiet_p99_ns=6e6, p99_ns=2e6, p99_at_cpus=1.775, free_jump=1.0, idle_jump=1.0, noise=0.1
)


def work(plant: Plant) -> float:
    """Return the CPU seconds of best-effort work in the first ten seconds of harm."""
    node = SimulatedNode(1, plant)
    ClosedLoop(node).run(10)
    return node.best_effort_cpu_s


def test_work_that_causes_a_quarter_of_the_wait_is_not_cut_to_its_floor() -> None:
    """Loops that follow the whole deviation leave 6.07 CPU seconds."""
    assert work(MOSTLY_OTHERS) > 1.5 * 6.07


def test_work_that_causes_the_whole_wait_is_cut_as_fast() -> None:
    """Loops that follow the whole deviation leave 5.05 CPU seconds."""
    plant = replace(MOSTLY_OTHERS, quiet_p99_ns=0.0, p99_ns=8e6, unknown=0.0)
    assert work(plant) == pytest.approx(5.05, rel=0.1)
