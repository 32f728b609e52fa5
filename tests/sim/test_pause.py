# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pauses: knobs are restored in the first tick and not written until the end; measuring goes on."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from controller.core.decision import ChannelState, Plan
from controller.core.model import Knob, KnobValue, Mode, Pause
from controller.core.settings import SafeState, Settings
from controller.demo.simulated_node import SimulatedNode
from tests.sim.plants import CacheNode, DiskNode, MemoryNode, NetworkNode, ResourceNode
from tests.support.loops.closed_loop import ClosedLoop, make_settings, with_sweet_point
from tests.support.loops.resource_loop import closed

EVERYTHING = Pause(everything=True)
KNOBS = (Knob.CPU_QUOTA, Knob.SCHED_IDLE)


def values(node: SimulatedNode) -> list[tuple[str, Knob, KnobValue]]:
    return [(w.name, knob, node.value(w, knob)) for w in node.best_effort for knob in KNOBS]


def held(node: SimulatedNode, before: Sequence[tuple[str, Knob, KnobValue]]) -> set[str]:
    """Return the workloads that have a knob with another value than *before*."""
    return {now[0] for now, was in zip(values(node), before, strict=True) if now != was}


def squeezed(
    services: int = 1,
) -> tuple[ClosedLoop[SimulatedNode], list[tuple[str, Knob, KnobValue]]]:
    """Return a loop that has squeezed all best-effort workloads, and the original values."""
    node = SimulatedNode(3, wants=(0.9, 0.8), services=services)
    before = values(node)
    loop = ClosedLoop(node, with_sweet_point(make_settings(sched_idle=True), 0.5e6))
    loop.run(20)
    assert held(node, before) == {"batch-0", "batch-1"}
    return loop, before


def test_everything_is_restored_in_one_tick_and_written_nowhere() -> None:
    loop, before = squeezed()
    loop.pause = EVERYTHING
    first = loop.step()
    assert held(loop.node, before) == set()
    assert first.released
    assert any(each.subject == "pause" for each in first.verdicts)
    plans = loop.run(60)
    assert not [each for plan in plans for each in plan.actions]
    assert held(loop.node, before) == set()
    assert all(plan.released and plan.quota_granted_cpus is None for plan in plans)
    # Measuring goes on, and says that the service suffers now.
    last = plans[-1]
    (report,) = last.loops
    assert report.value is not None and report.sweet_point is not None
    assert report.value > report.sweet_point
    assert (last.demands[0].state, last.demands[0].applied) == (ChannelState.PAUSED, 0.0)


def test_after_the_end_services_are_protected_again() -> None:
    loop, before = squeezed()
    loop.pause = EVERYTHING
    loop.run(60)
    loop.pause = None
    first = loop.step()
    # sched-idle at once; the quota by the loop, which starts from demand zero.
    assert [each.knob for each in first.actions] == [Knob.SCHED_IDLE] * 2
    assert first.demands[0].applied < 0.5
    loop.run(10)
    assert held(loop.node, before) == {"batch-0", "batch-1"}
    assert all(each is not None for each in loop.granted_cpus())


def test_a_value_of_another_program_is_left_alone() -> None:
    loop, _ = squeezed()
    loop.pause = EVERYTHING
    loop.step()
    foreign = KnobValue("70000 100000 0")
    loop.node.write(loop.node.best_effort[0], Knob.CPU_QUOTA, foreign)
    assert not [each for plan in loop.run(30) for each in plan.actions]
    assert loop.node.value(loop.node.best_effort[0], Knob.CPU_QUOTA) == foreign


def test_a_refused_restore_is_repeated() -> None:
    loop, before = squeezed()
    stuck = loop.node.best_effort[1]
    loop.node.refused = {(stuck.cgroup.id, Knob.CPU_QUOTA)}
    loop.pause = EVERYTHING
    loop.run(2)
    assert held(loop.node, before) == {"batch-1"}
    loop.node.refused = set()
    loop.run(120)
    assert held(loop.node, before) == set()


def test_a_paused_workload_is_not_touched_and_the_others_are() -> None:
    loop, before = squeezed()
    loop.pause = Pause(workloads=("batch-0",))
    plan = loop.step()
    assert held(loop.node, before) == {"batch-1"}
    assert not plan.released
    cgroup = loop.node.best_effort[0].cgroup
    later = [each for plan in loop.run(60) for each in plan.actions]
    assert cgroup.id not in {each.target.id for each in later}
    assert held(loop.node, before) == {"batch-1"}
    loop.pause = None
    loop.run(20)
    assert held(loop.node, before) == {"batch-0", "batch-1"}


def test_an_entry_of_the_configuration_stands_for_its_workloads() -> None:
    pause = Pause(workloads=("batch",))
    assert pause.covers_workload("batch:one")
    assert pause.covers_workload("batch")
    assert not pause.covers_workload("batch-0")


def test_a_paused_service_is_measured_and_not_protected() -> None:
    loop, before = squeezed()
    loop.pause = Pause(services=("web-0",))
    loop.step()
    assert held(loop.node, before) == set()
    plans = loop.run(60)
    assert not [each for plan in plans for each in plan.actions]
    assert not plans[-1].released
    assert plans[-1].demands[0].state is ChannelState.PAUSED
    assert plans[-1].loops[0].value is not None


def test_another_service_that_suffers_keeps_its_protection() -> None:
    loop, before = squeezed(services=2)
    loop.pause = Pause(services=("web-0",))
    for plan in loop.run(60):
        assert held(loop.node, before) == {"batch-0", "batch-1"}
        assert plan.demands[0].service == "web-1"
    loop.pause = Pause(services=("web-0", "web-1"))
    loop.step()
    assert held(loop.node, before) == set()


def test_observing_the_plans_say_the_same() -> None:
    node = SimulatedNode(3, wants=(0.9, 0.8))
    settings = with_sweet_point(make_settings(sched_idle=True, mode=Mode.OBSERVE), 0.5e6)
    loop = ClosedLoop(node, settings)
    loop.run(20)
    loop.pause = EVERYTHING
    plan = loop.step()
    restored = {(each.target.path, each.knob): each.value for each in plan.actions}
    for workload in node.best_effort:
        for knob in KNOBS:
            assert restored[workload.path, knob] == node.value(workload, knob)
    assert not [each for plan in loop.run(30) for each in plan.actions]


@pytest.mark.parametrize("safe_state", list(SafeState))
def test_without_data_a_pause_comes_before_the_safe_state(safe_state: SafeState) -> None:
    node = SimulatedNode(3, wants=(0.9, 0.8))
    before = values(node)
    loop = ClosedLoop(node, make_settings(sched_idle=True, safe_state=safe_state))
    loop.run(10)
    node.blind = True
    loop.run(5)
    loop.pause = EVERYTHING
    loop.step()
    assert held(node, before) == set()
    assert not [each for plan in loop.run(10) for each in plan.actions]


@pytest.mark.parametrize("kind", [CacheNode, NetworkNode, MemoryNode, DiskNode])
@pytest.mark.parametrize("pause", [EVERYTHING, Pause(services=("web",))])
def test_the_knobs_of_every_channel(kind: type[ResourceNode], pause: Pause) -> None:
    loop = closed(kind(3))
    before = loop.node.snapshot(0).knobs
    original = {(each.target, each.knob): each.value for each in before}
    loop.run(60)

    def changed() -> set[Knob]:
        present = loop.node.snapshot(loop.tick * 200_000_000).knobs
        return {each.knob for each in present if each.value != original[each.target, each.knob]}

    assert changed()
    loop.pause = pause
    loop.step()
    assert changed() == set()
    assert not [each for plan in loop.run(30) for each in plan.actions]


@pytest.mark.parametrize("kind", [MemoryNode, DiskNode])
def test_the_knobs_of_a_paused_workload_and_those_of_the_other(kind: type[ResourceNode]) -> None:
    loop = closed(kind(3))
    original = {(each.target, each.knob): each.value for each in loop.node.snapshot(0).knobs}
    loop.run(60)

    def changed() -> set[tuple[str, Knob]]:
        present = loop.node.snapshot(loop.tick * 200_000_000).knobs
        return {
            (each.target.path, each.knob)
            for each in present
            if each.value != original[each.target, each.knob]
        }

    both = changed()
    assert {path for path, _ in both} == {"/batch-0", "/batch-1"}
    loop.pause = Pause(workloads=("batch-0",))
    loop.step()
    left = {(path, knob) for path, knob in both if path == "/batch-1"}
    assert changed() == left
    loop.run(60)
    assert changed() == left
    loop.pause = None
    loop.run(30)
    assert changed() == both


def evicting(settings: Settings) -> Settings:
    profile = settings.profiles["default"]
    profile = replace(profile, evict_enabled=True, evict_after_ns=10_000_000_000)
    return replace(settings, profiles={"default": profile})


def evictions(plans: Sequence[Plan]) -> int:
    return sum(plan.eviction is not None for plan in plans)


@pytest.mark.parametrize("pause", [EVERYTHING, Pause(services=("web-0",))])
def test_nothing_is_evicted_for_what_is_paused(pause: Pause) -> None:
    # A sweet point that no squeeze can reach.
    settings = evicting(with_sweet_point(make_settings(), 0.06e6))
    loop = ClosedLoop(SimulatedNode(3, wants=(0.9, 0.8)), settings)
    plans = loop.run(5)
    assert evictions(plans) == 0
    loop.pause = pause
    assert evictions(loop.run(120)) == 0
    loop.pause = None
    assert evictions(loop.run(60)) == 1


def test_a_paused_workload_is_not_evicted() -> None:
    settings = evicting(with_sweet_point(make_settings(), 0.06e6))
    loop = ClosedLoop(SimulatedNode(3, wants=(1.2, 0.3)), settings)
    loop.pause = Pause(workloads=("batch-0",))
    names = {plan.eviction.name for plan in loop.run(120) if plan.eviction is not None}
    assert "batch-0" not in names
