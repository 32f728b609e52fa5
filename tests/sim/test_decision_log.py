# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of the decision log say what is in force, whatever the reason for the decision is."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from controller.core.decision import ChannelState, Plan
from controller.core.model import Channel, Mode, Pause
from controller.core.units import NS_PER_SEC
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.sim.plants import CacheNode, DiskNode, MemoryNode, NetworkNode, ResourceNode
from tests.support.loops.closed_loop import ClosedLoop, make_settings
from tests.support.loops.resource_loop import MEASURES, closed

KINDS: tuple[type[ResourceNode], ...] = (CacheNode, NetworkNode, MemoryNode, DiskNode)
# What each state that takes nothing more is called.
REASONS = {
    ChannelState.SELF: "the service was held back by its own limit",
    ChannelState.STEAL: "the host takes CPU time away",
    ChannelState.NOT_BE: "not caused by best-effort",
    ChannelState.PAUSED: "the service is paused",
}


def lines(plans: Sequence[Plan], channel: Channel) -> Iterator[tuple[Plan, ChannelState, str]]:
    """Yield the lines about *channel*, with the plan of each and the state of the channel."""
    for plan in plans:
        demand = next((each for each in plan.demands if each.channel is channel), None)
        if demand is not None:
            subject = demand.service or channel
            for verdict in plan.verdicts:
                if verdict.subject == subject and ";" in verdict.text:
                    yield plan, demand.state, verdict.text


def check_cpu(plans: Sequence[Plan]) -> dict[ChannelState, list[str]]:
    """Check the lines of the cpu channel; return those of each state while a quota is in force."""
    limited: dict[ChannelState, list[str]] = {}
    for plan, state, text in lines(plans, Channel.CPU):
        in_force = plan.quota_granted_cpus is not None
        assert "is not squeezed" not in text
        assert ("best-effort quota" in text and " gets " in text) is in_force, text
        assert ("best-effort is not limited" in text) is not in_force, text
        assert (REASONS[state] in text) if state in REASONS else ("caused by best" not in text)
        if in_force:
            limited.setdefault(state, []).append(text)
    return limited


def test_no_quota_is_in_force_while_a_service_suffers_from_something_else() -> None:
    node = SimulatedNode(2)
    loop = ClosedLoop(node)
    plans = loop.run(30)
    assert plans[-1].quota_granted_cpus is not None
    node.plant = replace(node.plant, quiet_p99_ns=9e6, p99_ns=1e3)
    plans += loop.run(180)
    states = {
        demand.state: plan.quota_granted_cpus is not None
        for plan in plans
        for demand in plan.demands
        if demand.channel is Channel.CPU
    }
    assert states.pop(ChannelState.FREE) is False
    assert states == {ChannelState.SQUEEZE: True, ChannelState.NOT_BE: False}
    assert set(check_cpu(plans)) == {ChannelState.SQUEEZE}
    assert set(loop.granted_cpus()) == {None}


def test_stolen_time_and_a_pause_while_a_quota_is_in_force() -> None:
    node = SimulatedNode(2, Plant(threads=1))
    loop = ClosedLoop(node)
    plans = loop.run(30)
    node.steal_ratio = 0.6
    plans += loop.run(60)
    node.steal_ratio = 0.0
    plans += loop.run(30)
    loop.pause = Pause(services=("web-0",))
    plans += loop.run(30)
    assert set(check_cpu(plans)) == {ChannelState.SQUEEZE}


@pytest.mark.parametrize("kind", KINDS)
def test_the_rungs_of_other_channels(kind: type[ResourceNode]) -> None:
    node = kind(1)
    wants = node.wants
    node.wants, node.scale = [want / 1000 for want in wants], 500.0
    loop = closed(node)
    plans = loop.run(30)
    node.wants, node.scale = wants, 1.0
    plans += loop.run(60)
    loop.pause = Pause(services=("web",))
    plans += loop.run(30)
    seen = set()
    channel = MEASURES[kind][1]
    for plan, state, text in lines(plans, channel):
        taken = any(each.part > 0 for each in plan.rungs if each.channel is channel)
        assert "is not squeezed" not in text
        assert "best-effort is not limited" not in text or not taken, text
        assert state not in REASONS or REASONS[state] in text
        seen.add((state, taken))
    assert {(ChannelState.NOT_BE, False), (ChannelState.SQUEEZE, True)} <= seen


def test_moves_of_a_squeeze_are_told_every_five_seconds_and_a_state_at_once() -> None:
    node = SimulatedNode(2)
    loop = ClosedLoop(node)
    plans = loop.run(60)
    told = [(plan.time_ns, state) for plan, state, _ in lines(plans, Channel.CPU)]
    assert ChannelState.SQUEEZE in {state for _, state in told}
    for (before_ns, before), (now_ns, now) in pairwise(told):
        assert now is not before or now_ns - before_ns >= 5 * NS_PER_SEC
    granted = [plan.quota_granted_cpus for plan in plans]
    assert len(set(granted)) > 2 * len(told), "the quota moved more often than it was told"


def test_in_observe_mode_a_line_says_that_nothing_is_written() -> None:
    plans = ClosedLoop(SimulatedNode(2), make_settings(mode=Mode.OBSERVE)).run(30)
    texts = [text for _, _, text in lines(plans, Channel.CPU)]
    assert texts
    assert all("; if the agent enforced: " in text for text in texts)
