# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Settings for the nodes of tests.sim.plants, each with the indicator that its channel needs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from controller.core.decision import Action, Plan
from controller.core.model import Channel, IndicatorName, Knob, KnobValue, Mode
from controller.core.settings import IndicatorSpec, LawSettings, Profile, SafeState, Settings
from controller.core.tuning import auto_gains
from tests.sim.plants import (
    CacheNode,
    DiskNode,
    DiskWaitNode,
    MemoryNode,
    NetworkNode,
    ResourceNode,
)
from tests.support.loops.closed_loop import LAW, SECOND_NS, TICK_NS, ClosedLoop, settings_with

ResourceNodeT = TypeVar("ResourceNodeT", bound=ResourceNode)
# The law whose ladders are moved rung by rung: a trial lets the first ones go for a while.
IN_ORDER = replace(LAW, rungs_by_work=False)

# Indicator, channel, sweet point (ns for the backlog), tolerance, resolution.
MEASURES: dict[type[ResourceNode], tuple[IndicatorName, Channel, float, float, float]] = {
    CacheNode: (IndicatorName.CPI, Channel.CACHE, 1.25, 1.1, 0.01),
    NetworkNode: (IndicatorName.NET_BACKLOG, Channel.NETWORK, 8000 / 10e6 * 1e9, 2.0, 1e3),
    MemoryNode: (IndicatorName.PSI_MEMORY, Channel.MEMORY, 0.01, 2.0, 1e-4),
    DiskNode: (IndicatorName.PSI_IO, Channel.IO, 0.02, 2.0, 1e-4),
    DiskWaitNode: (IndicatorName.DISK_WAIT, Channel.IO, 1e6, 2.0, 2e4),
}


KINDS = tuple(MEASURES)


def resource_spec(kind: type[ResourceNode], filter_ns: int = 4 * SECOND_NS) -> IndicatorSpec:
    name, channel, sweet_point, tolerance, resolution = MEASURES[kind]
    return IndicatorSpec(
        name=name,
        sweet_point=sweet_point,
        tolerance=tolerance,
        resolution=resolution,
        dead_zone=0.1,
        window_ns=SECOND_NS,
        filter_ns=filter_ns,
        min_samples=0,
        channel=channel,
        gains=auto_gains(SECOND_NS, TICK_NS, filter_ns),
        is_time=name in (IndicatorName.NET_BACKLOG, IndicatorName.DISK_WAIT),
    )


def resource_settings(
    node: ResourceNode,
    specs: Sequence[IndicatorSpec] = (),
    safe_state: SafeState = SafeState.STATIC,
    mode: Mode = Mode.ENFORCE,
    channels: tuple[Channel, ...] = tuple(Channel),
    law: LawSettings = IN_ORDER,
) -> Settings:
    profile = Profile(
        name="default",
        indicators=tuple(specs) or (resource_spec(type(node)),),
        sched_idle=False,
        be_share_min=0.2,
        idle_oncpu_ratio=0.005,
        channels=channels,
    )
    return settings_with(profile, node.host, safe_state, mode, law)


def demands(plans: Sequence[Plan], channel: Channel) -> list[float]:
    """Return the applied demands of one channel."""
    return [each.applied for plan in plans for each in plan.demands if each.channel is channel]


def closed(
    node: ResourceNodeT, safe_state: SafeState = SafeState.STATIC
) -> ClosedLoop[ResourceNodeT]:
    return ClosedLoop(node, resource_settings(node, safe_state=safe_state))


def channel_of(node: ResourceNode) -> Channel:
    return MEASURES[type(node)][1]


def writes(plans: Sequence[Plan], *knobs: Knob) -> list[Action]:
    return [each for plan in plans for each in plan.actions if not knobs or each.knob in knobs]


def settings_of(node: ResourceNode) -> dict[tuple[int, Knob], KnobValue]:
    return {(each.target.id, each.knob): each.value for each in node.knobs.readings()}
