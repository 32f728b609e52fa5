# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When ticks are rarer, because nothing runs that could harm a service; ticks that are late."""

from dataclasses import replace

import pytest

from controller.core.model import Pause
from controller.core.planner import Planner
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import TICK_NS, ClosedLoop, make_settings

HARMLESS = Plant(p99_ns=1e3, noise=0.0)


def is_calm(planner: Planner) -> bool:
    return planner.period_ns > TICK_NS


def test_sleeping_best_effort_work_makes_a_node_calm_and_work_ends_that_at_once() -> None:
    node = SimulatedNode(1, HARMLESS)
    loop = ClosedLoop(node, make_settings())
    loop.run(5)
    assert not is_calm(loop.planner)
    wants, node.wants = node.wants, [0.0 for _ in node.wants]
    loop.run(15)
    assert is_calm(loop.planner)
    node.wants = wants
    loop.step()  # the work begins after its snapshot
    loop.step()
    assert not is_calm(loop.planner)


def test_a_squeeze_keeps_ticks_frequent_although_the_work_sleeps() -> None:
    node = SimulatedNode(1, Plant(noise=0.0))
    loop = ClosedLoop(node, make_settings())
    loop.run(8)
    node.wants = [0.0 for _ in node.wants]
    squeezed = calm = 0
    for _ in range(600):
        demands = loop.step().demands
        squeezed += any(each.applied > 0 for each in demands)
        calm += is_calm(loop.planner)
        assert not (is_calm(loop.planner) and any(each.applied > 0 for each in demands))
    assert squeezed > 0
    assert calm > 0


def test_paused_work_that_runs_is_measured_as_often() -> None:
    loop = ClosedLoop(SimulatedNode(1, HARMLESS), make_settings())
    loop.pause = Pause(everything=True)
    loop.run(10)
    assert not is_calm(loop.planner)


@pytest.mark.parametrize("asleep", [True, False])
def test_after_a_tick_without_work_the_next_one_is_late_later(asleep: bool) -> None:
    node = SimulatedNode(1, HARMLESS)
    loop = ClosedLoop(node, make_settings())
    if asleep:
        node.wants = [0.0 for _ in node.wants]
    before = loop.run(15)[-1]
    node.plant = replace(node.plant, quiet_p99_ns=4e7)
    loop.tick += 2
    after = loop.step()
    moved = after.loops[0].filtered_deviation != before.loops[0].filtered_deviation
    assert moved is asleep


def test_without_data_of_the_probe_a_node_is_not_calm() -> None:
    node = SimulatedNode(1, HARMLESS)
    planner = Planner(make_settings(), node.workloads)
    for tick in range(3):
        planner.step(replace(node.snapshot(tick * TICK_NS), age_ns=None), ())
    assert not is_calm(planner)
