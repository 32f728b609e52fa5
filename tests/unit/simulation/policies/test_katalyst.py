# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rama and its regulator against figures that were computed independently (88 CPUs at most)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from controller.simulation.plant import Plant
from controller.simulation.policies.katalyst import (
    TARGETS,
    Katalyst,
    KatalystSettings,
    Rama,
    Regulator,
)
from controller.simulation.scenarios import SCENARIOS

MOST, LEAST, START = 88, 4, 40


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("sched_wait", 480, 0.0),
        ("sched_wait", 500, 0.3669),
        ("sched_wait", 600, 1.1691),
        ("sched_wait", 920, 3.0498),
        ("sched_wait", 4600, 10.0),
        ("sched_wait", 380, 0.0),
        ("sched_wait", 300, -0.3385),
        ("sched_wait", 100, -1.2086),
        ("sched_wait", 10, -2.0),
        ("usage", 0.81, 0.1093),
        ("usage", 0.88, 0.8387),
        ("usage", 0.95, 1.5123),
        ("usage", 0.76, 0.0),
        ("usage", 0.70, -0.4700),
        ("usage", 0.40, -2.0),
        ("cpi", 1.41, 0.0626),
        ("cpi", 2.0, 3.1387),
        ("cpi", 1.2, -0.5426),
    ],
)
def test_one_proposal(name: str, value: float, expected: float) -> None:
    rama = Rama([TARGETS[name]], LEAST, MOST)
    assert rama.propose([value], START) == pytest.approx(START + expected, abs=1e-4)
    assert rama.sums == pytest.approx([expected], abs=1e-4)


def trace(values: Sequence[float], ticks: int, smt: bool) -> list[int]:
    """Return the requirement, every five seconds, while the indicators have constant *values*."""
    rama = Rama([TARGETS["sched_wait"], TARGETS["usage"]], LEAST, MOST)
    regulator = Regulator(START, LEAST, MOST, smt)
    found = []
    for tick in range(ticks):
        wanted = rama.propose(values, regulator.cpus)
        found.append(regulator.update(wanted, 5.0 * tick))
    return found


def test_traces_of_a_high_load() -> None:
    assert trace((920, 0.9), 6, smt=True) == [44, 48, 52, 56, 60, 64]
    assert trace((485, 0.79), 4, smt=False) == [41, 42, 43, 44]


def test_traces_of_a_low_load() -> None:
    assert trace((100, 0.4), 8, smt=True) == [40, 38, 38, 38, 38, 38, 38, 36]
    later = trace((100, 0.4), 30, smt=True)
    assert [later.index(cpus) for cpus in (36, 34, 32)] == [7, 13, 19]
    below = trace((340, 0.7), 10, smt=True)
    assert below.index(38) * 5 == 40


def test_no_value_holds() -> None:
    rama = Rama([TARGETS["sched_wait"], TARGETS["usage"]], LEAST, MOST)
    assert rama.propose([0.0, 0.0], START) == START


@pytest.mark.parametrize("rama", [False, True])
@pytest.mark.parametrize("cpus", [1, 2, 4, 8, 16])
def test_jobs_keep_a_cpu_on_a_node_of_any_size(cpus: int, rama: bool) -> None:
    machine = replace(SCENARIOS["smt"].machine, cpus=cpus, threads_per_core=1)
    plant = Plant(replace(SCENARIOS["smt"], machine=machine), seed=1, seconds=60)
    policy = Katalyst(plant, KatalystSettings(rama=rama))
    for _ in range(12):
        policy.step()
        for _ in range(50):
            plant.advance()
        assert 1 <= plant.knobs.cpuset <= cpus
