# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the default profile enforces where memory is short: nothing before it has learned."""

from pathlib import Path

import pytest

from controller.config.load import load
from controller.core.decision import ChannelState, Plan
from controller.core.learning.quiet import Disturbance
from controller.core.model import Channel, IndicatorName, Knob, Mode
from controller.core.settings import Profile, SafeState
from tests.sim.plants import MemoryNode
from tests.support.loops.closed_loop import LAW, ClosedLoop, settings_with
from tests.support.loops.resource_loop import writes

# Best-effort work that leaves the service its memory, and that takes it.
LITTLE, MUCH = [0.2 * 2**30, 0.1 * 2**30], [3.5 * 2**30, 2.2 * 2**30]
LEARNING_S = 90


class SleepingNode(MemoryNode):
    """Best-effort work holds its memory without using a CPU."""

    def _cpus(self, index: int) -> float:
        return 0.0


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    config = tmp_path / "config.yaml"
    config.write_text("workloads: [{name: web, cgroup: /web, class: latency-sensitive}]\n")
    return load(config, cpus=4).settings.profiles["default"]


def closed(node: MemoryNode, profile: Profile) -> ClosedLoop[MemoryNode]:
    return ClosedLoop(node, settings_with(profile, node.host, SafeState.STATIC, Mode.ENFORCE, LAW))


def refaults_learned(plan: Plan) -> tuple[bool, float | None, str]:
    """Return whether the sweet point is sure, what it is, and what disturbs it now."""
    (found,) = (each for each in plan.learned if each.indicator is IndicatorName.REFAULTS)
    return found.is_sure, found.sweet_point, found.disturbance


def memory_state(plan: Plan) -> ChannelState:
    (state,) = (each.state for each in plan.demands if each.channel is Channel.MEMORY)
    return state


def test_a_service_whose_memory_is_taken_gets_it_back_once_it_has_learned(
    profile: Profile,
) -> None:
    node = MemoryNode(1)
    node.wants = LITTLE
    loop = closed(node, profile)
    plans = loop.run(LEARNING_S)
    assert not writes(plans, Knob.MEMORY_HIGH)
    # It was never without best-effort work, which took nothing.
    assert refaults_learned(plans[-1]) == (True, 200.0, Disturbance.NONE)
    node.wants = MUCH
    before = node.value
    plans = loop.run(1)
    without = node.value
    plans = loop.run(120)
    assert writes(plans, Knob.MEMORY_HIGH)
    assert before < node.value < 0.6 * without
    # What the squeezed service shows is not normal.
    is_sure, sweet_point, _ = refaults_learned(plans[-1])
    assert (is_sure, sweet_point) == (True, 200.0)
    node.wants = LITTLE
    loop.run(600)
    assert {node.knobs.value(each.cgroup.id, Knob.MEMORY_HIGH) for each in node.best_effort} == {
        "max"
    }


@pytest.mark.parametrize("kind", [MemoryNode, SleepingNode])
def test_without_a_learned_sweet_point_nothing_is_taken_from_best_effort(
    kind: type[MemoryNode], profile: Profile
) -> None:
    node = kind(1)
    loop = closed(node, profile)
    plans = loop.run(2 * LEARNING_S)
    assert node.value > 0.03, "the service suffers from the begin on"
    assert not writes(plans, Knob.MEMORY_HIGH)
    running = kind is MemoryNode
    assert refaults_learned(plans[-1]) == (
        False,
        None,
        Disturbance.BEST_EFFORT if running else Disturbance.HOLDS_MEMORY,
    )
    # Work that ends is made good for.
    node.wants = LITTLE
    assert refaults_learned(loop.run(LEARNING_S)[-1])[:2] == (True, 200.0)


def test_a_service_at_its_own_limit_takes_nothing_from_best_effort(profile: Profile) -> None:
    node = MemoryNode(1)
    node.wants = LITTLE
    loop = closed(node, profile)
    loop.run(LEARNING_S)
    node.wants, node.own_hits = MUCH, 1.0
    plans = loop.run(60)
    assert not writes(plans, Knob.MEMORY_HIGH)
    assert memory_state(plans[-1]) is ChannelState.SELF
    node.own_hits = 0.0
    plans = loop.run(30)
    assert writes(plans, Knob.MEMORY_HIGH), "the same without its limit"


def test_a_service_that_always_reads_again_has_that_as_its_normal(profile: Profile) -> None:
    node = SleepingNode(1)
    node.wants, node.scale = [0.0, 0.0], 219.0
    loop = closed(node, profile)
    loop.run(LEARNING_S)
    own = node.value * 10_000  # pages per second
    assert own == pytest.approx(400, rel=0.01)
    is_sure, sweet_point, _ = refaults_learned(loop.run(1)[-1])
    assert is_sure
    assert sweet_point is not None
    assert 1.5 * own < sweet_point < 3 * own
    node.wants = LITTLE
    assert not writes(loop.run(60), Knob.MEMORY_HIGH)
    node.wants = MUCH
    assert writes(loop.run(30), Knob.MEMORY_HIGH)
