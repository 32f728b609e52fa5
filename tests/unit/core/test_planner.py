# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When ticks are rarer, because nothing runs that could harm a service; ticks that are late."""

from dataclasses import replace

import pytest

from controller.core.looks import Quiet, TickReason
from controller.core.model import Knob, KnobValue, Pause
from controller.core.planner import Planner
from controller.core.settings import EvictionLimits
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import TICK_NS, ClosedLoop, make_settings, make_spec

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


@pytest.mark.parametrize("seconds", [0.2, 1.8, 60.0])
def test_ticks_that_were_left_out_are_no_gap(seconds: float) -> None:
    loop = ClosedLoop(SimulatedNode(1, HARMLESS), make_settings())
    before = loop.run(15)[-1]
    loop.node.plant = replace(loop.node.plant, quiet_p99_ns=4e7)
    left_out_ns = round(seconds * 1e9)
    now_ns = loop.now_ns + left_out_ns
    snapshot = replace(loop.node.snapshot(now_ns), left_out_ns=left_out_ns)
    after = loop.planner.step(snapshot, ())
    assert after.loops[0].value is not None  # the windows go on
    assert after.loops[0].filtered_deviation != before.loops[0].filtered_deviation


def test_a_tick_is_late_after_the_last_look() -> None:
    loop = ClosedLoop(SimulatedNode(1, HARMLESS), make_settings())
    before = loop.run(15)[-1]
    loop.node.plant = replace(loop.node.plant, quiet_p99_ns=4e7)
    snapshot = loop.node.snapshot(loop.now_ns + 4 * TICK_NS)
    after = loop.planner.step(replace(snapshot, left_out_ns=2 * TICK_NS), ())
    assert after.loops[0].filtered_deviation == before.loops[0].filtered_deviation


def quiet(loop: ClosedLoop[SimulatedNode]) -> Quiet:
    plan = loop.step()
    return loop.planner.quiet(plan, loop.planner.settle(loop.outcomes))


def test_the_next_tick_may_be_left_out_while_nothing_is_limited() -> None:
    node = SimulatedNode(1, HARMLESS)
    loop = ClosedLoop(node, make_settings(sched_idle=True))
    assert quiet(loop).reason is TickReason.ACTIVE  # sched-idle was set
    loop.run(5)
    assert quiet(loop).reason is None
    node.write(node.best_effort[0], Knob.SCHED_IDLE, KnobValue("0 512"))
    assert quiet(loop).reason is TickReason.ACTIVE


def test_no_tick_is_left_out_from_the_first_harm_until_the_last_limit_is_gone() -> None:
    node = SimulatedNode(1, Plant(noise=0.0))
    loop = ClosedLoop(node, make_settings())
    loop.run(20)
    assert quiet(loop).reason is TickReason.ACTIVE
    node.wants = [0.0 for _ in node.wants]
    reasons = []
    while (found := quiet(loop)).reason is not None:
        limited = any(cpus is not None for cpus in loop.granted_cpus())
        reasons.append((found.reason, limited))
        assert len(reasons) < 1000
    assert (TickReason.ACTIVE, True) in reasons
    assert not any(cpus is not None for cpus in loop.granted_cpus())


def test_a_reload_changes_how_many_evictions_an_hour_may_have() -> None:
    settings = make_settings(make_spec(0.06e6))  # no squeeze reaches it
    profile = replace(
        settings.profiles["default"], evict_enabled=True, evict_after_ns=10_000_000_000
    )
    settings = replace(settings, profiles={"default": profile}, eviction=EvictionLimits(per_hour=0))
    loop = ClosedLoop(SimulatedNode(1, Plant(noise=0.0)), settings)
    assert all(plan.eviction is None for plan in loop.run(120))
    loop.planner.reconfigure(replace(settings, eviction=EvictionLimits(per_hour=1)))
    assert sum(plan.eviction is not None for plan in loop.run(120)) == 1
