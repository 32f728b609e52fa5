# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""States of the channels other than CPU: evidence, rungs, refusals, foreign values, evictions."""

from collections.abc import Sequence
from dataclasses import replace
import statistics

import pytest

from controller.core.decision import ChannelState, Outcome
from controller.core.model import (
    CgroupId,
    Channel,
    IndicatorName,
    Knob,
    KnobValue,
    Mode,
    ServiceReading,
    Target,
    TargetKind,
)
from controller.core.planner import Planner
from controller.core.settings import CoreMode, CoreSettings, LawSettings, SafeState
from controller.core.tuning import DEFAULT_LIMITS
from tests.sim.plants import (
    CacheNode,
    DiskWaitNode,
    MemoryNode,
    NetworkNode,
    ResourceNode,
)
from tests.support.loops.closed_loop import LAW, TICK_NS, TICKS_PER_S, ClosedLoop, filtered
from tests.support.loops.resource_loop import (
    IN_ORDER,
    KINDS,
    channel_of,
    closed,
    demands,
    resource_settings,
    resource_spec,
    settings_of,
    writes,
)


@pytest.mark.parametrize("kind", KINDS)
def test_without_evidence_against_best_effort_there_is_no_squeeze(kind: type[ResourceNode]) -> None:
    node = kind(1)
    node.wants = [want / 1000 for want in node.wants]
    node.scale = 500.0
    loop = closed(node)
    plans = loop.run(30)
    actions = [action for plan in plans for action in plan.actions]
    assert all(action.reason.startswith("micro-probe") for action in actions)
    assert not actions or kind is CacheNode
    assert not any(demand.applied for plan in plans for demand in plan.demands)
    assert plans[-1].demands[-1].state is ChannelState.NOT_BE
    assert any("not caused by best-effort" in each.text for p in plans for each in p.verdicts)


_OF_MEMORY = {
    IndicatorName.PSI_MEMORY: resource_spec(MemoryNode),
    IndicatorName.REFAULTS: replace(
        resource_spec(MemoryNode), name=IndicatorName.REFAULTS, sweet_point=100.0, resolution=1.0
    ),
}


@pytest.mark.parametrize("name", _OF_MEMORY)
def test_a_service_at_its_own_limit_of_memory_gets_no_squeeze(name: IndicatorName) -> None:
    node = MemoryNode(1)
    node.own_hits = 1.0
    loop = ClosedLoop(node, resource_settings(node, [_OF_MEMORY[name]]))
    plans = loop.run(30)
    assert not any(demand.applied for plan in plans for demand in plan.demands)
    assert plans[-1].demands[-1].state is ChannelState.SELF
    node.own_hits = 0.0
    plans = loop.run(30)
    assert plans[-1].demands[-1].state is ChannelState.SQUEEZE
    assert any(action.knob is Knob.MEMORY_HIGH for plan in plans for action in plan.actions)


@pytest.mark.parametrize("own", [True, False])
def test_waits_for_disks_that_the_service_causes_itself_bring_no_squeeze(own: bool) -> None:
    """Best-effort moves most of the bytes, and the waits of the service may be its own."""
    node = DiskWaitNode(1)
    node.inflicts = not own
    plans = closed(node).run(30)
    assert any(demand.applied for plan in plans for demand in plan.demands) is not own
    assert (plans[-1].demands[-1].state is ChannelState.NOT_BE) is own


@pytest.mark.parametrize("kind", KINDS)
def test_without_data_the_knobs_are_restored(kind: type[ResourceNode]) -> None:
    node = kind(1)
    untouched = settings_of(node)
    loop = closed(node)
    loop.run(30)
    assert settings_of(node) != untouched
    node.blind = True
    plans = loop.run(3)
    assert plans[-1].safe
    assert settings_of(node) == untouched


@pytest.mark.parametrize("kind", KINDS)
def test_the_floor_as_safe_state(kind: type[ResourceNode]) -> None:
    node = kind(1)
    loop = closed(node, SafeState.FLOOR)
    loop.run(5)
    node.blind = True
    plans = loop.run(60)
    assert plans[-1].safe
    assert all(rung.part == 1.0 for rung in plans[-1].rungs if rung.usable)


def test_the_quota_is_the_last_rung_of_the_cache_and_the_only_one_without_resctrl() -> None:
    node = CacheNode(1, group=False)
    loop = closed(node)
    plans = loop.run(90)
    assert {action.knob for action in writes(plans)} == {Knob.CPU_QUOTA}
    assert abs(statistics.mean(filtered(plans[-30 * TICKS_PER_S :]))) < 0.3
    # With a group, the quota is used only when the knobs of the group are at their floors.
    node = CacheNode(1, wants=(60e9, 30e9))
    loop = closed(node)
    plans = loop.run(120)
    first = next(plan for plan in plans if writes([plan], Knob.CPU_QUOTA))
    parts = {rung.knob: rung.part for rung in first.rungs}
    assert parts[Knob.LLC_WAYS] == parts[Knob.MBA] == 1.0
    assert abs(statistics.mean(filtered(plans[-30 * TICKS_PER_S :]))) < 0.3


def test_a_refused_rung_is_skipped() -> None:
    node = CacheNode(1)
    node.knobs.refused = {(77, Knob.LLC_WAYS), (77, Knob.MBA)}
    loop = closed(node)
    plans = loop.run(90)
    assert writes(plans, Knob.CPU_QUOTA)
    assert len(writes(plans, Knob.LLC_WAYS)) <= 12
    assert abs(statistics.mean(filtered(plans[-30 * TICKS_PER_S :]))) < 0.5


def test_a_foreign_value_of_a_group_is_overwritten_three_times() -> None:
    node = CacheNode(1)
    loop = closed(node)
    loop.run(30)
    for _ in range(4):
        assert node.percent < 100
        node.knobs.write(77, Knob.MBA, KnobValue("0=100;1=100"))
        loop.run(10)
    assert node.percent == 100
    plans = loop.run(60)
    assert not writes(plans, Knob.MBA)
    assert [rung.usable for rung in plans[-1].rungs if rung.knob is Knob.MBA] == [False]
    # The other rungs of the ladder are still used.
    assert writes(plans, Knob.CPU_QUOTA)


def test_observe_plans_and_writes_nothing() -> None:
    node = CacheNode(1)
    untouched = settings_of(node)
    loop = ClosedLoop(node, resource_settings(node, mode=Mode.OBSERVE))
    plans = loop.run(60)
    assert writes(plans, Knob.MBA)
    assert settings_of(node) == untouched
    assert demands(plans[-1:], Channel.CACHE) == [1.0]


def test_a_channel_that_the_profile_switches_off_is_left_alone() -> None:
    node = CacheNode(1)
    loop = ClosedLoop(node, resource_settings(node, channels=(Channel.CPU,)))
    plans = loop.run(20)
    assert not any(plan.actions for plan in plans)
    assert not any(plan.loops for plan in plans)


def evicting(
    wants: tuple[float, ...] = (40e9, 20e9), law: LawSettings = IN_ORDER
) -> ClosedLoop[CacheNode]:
    """Return a loop in which best-effort work hurts a service even at its floors, of half a CPU."""
    node = CacheNode(1, wants=wants)
    settings = resource_settings(node, law=law)
    limits = replace(DEFAULT_LIMITS[Knob.CPU_QUOTA], floor=0.5)
    profile = replace(
        settings.profiles["default"], evict_enabled=True, limits={Knob.CPU_QUOTA: limits}
    )
    return ClosedLoop(node, replace(settings, profiles={"default": profile}))


def test_with_every_knob_at_its_floor_the_culprit_is_evicted() -> None:
    loop = evicting()
    plans = loop.run(150)
    (eviction,) = [plan.eviction for plan in plans if plan.eviction is not None]
    assert (eviction.name, eviction.channel) == ("batch-0", Channel.CACHE)
    assert any("to be evicted" in each.text for plan in plans for each in plan.verdicts)


@pytest.mark.parametrize(
    ("leaves", "verdict"), [(("batch-0",), "helped"), (("batch-0", "web"), "was not verified")]
)
def test_the_effect_of_an_eviction_is_verified_on_its_service(
    leaves: tuple[str, ...], verdict: str
) -> None:
    loop = evicting()
    node: CacheNode = loop.node
    while loop.step().eviction is None:
        assert loop.tick < 150 * TICKS_PER_S
    node.wants = [0.0 for _ in node.wants]
    loop.planner.set_workloads([each for each in node.workloads if each.name not in leaves])
    texts = [each.text for plan in loop.run(35) for each in plan.verdicts]
    (text,) = [text for text in texts if text.startswith("its eviction")]
    assert text.startswith(f"its eviction {verdict}: ")


@pytest.mark.parametrize(("wants", "evicted"), [((58e9, 2e9), []), ((30e9, 30e9), ["batch-1"])])
def test_beside_a_culprit_that_is_not_evictable_only_another_culprit_is_evicted(
    wants: tuple[float, float], evicted: list[str]
) -> None:
    loop = evicting(wants)
    kept = [each._replace(evictable=each.name != "batch-0") for each in loop.node.workloads]
    loop.planner.set_workloads(kept)
    plans = loop.run(150)
    assert demands(plans[-1:], Channel.CACHE) == [1.0]
    assert [plan.eviction.name for plan in plans if plan.eviction is not None][:1] == evicted


def test_the_containers_of_a_pod_are_evicted_together() -> None:
    # A squeeze that is let go on trial is not at the stop for as long as an eviction needs.
    loop = evicting((40e9, 30e9, 30e9), replace(IN_ORDER, verify_squeeze=False))
    node: CacheNode = loop.node
    pod = Target(TargetKind.CGROUP, "v2", 99, "/pod")
    members = {"batch-1", "batch-2"}
    divided = [
        each._replace(container_of=pod, service="shop/pod") if each.name in members else each
        for each in node.workloads
    ]
    loop.planner.set_workloads(divided)
    while (eviction := loop.step().eviction) is None:
        assert loop.tick < 150 * TICKS_PER_S
    # Together they have more than the other one, and the pod is not tried twice.
    assert (eviction.cgroup, eviction.name) == (CgroupId("v2", 99), "shop/pod")
    node.wants = [40e9, 0.0, 0.0]
    loop.planner.set_workloads([each for each in divided if each.container_of is None])
    assert any("its eviction" in each.text for plan in loop.run(35) for each in plan.verdicts)


@pytest.mark.parametrize("kind", [CacheNode, NetworkNode])
def test_the_own_latency_of_a_service_moves_the_channel_that_deviates_most(
    kind: type[ResourceNode],
) -> None:
    """The own figure deviates; the other indicators are near their sweet points."""
    node = kind(1)
    spec = resource_spec(kind)
    assert spec.sweet_point is not None
    own = replace(
        spec,
        name=IndicatorName.SERVICE,
        sweet_point=5e6,
        tolerance=2.0,
        resolution=1e3,
        channel=Channel.CPU,
    )
    lax = replace(spec, sweet_point=spec.sweet_point * 1.5)
    planner = Planner(resource_settings(node, specs=(lax, own)), node.workloads)
    outcomes: Sequence[Outcome] = ()
    plans = []
    for tick in range(60 * TICKS_PER_S):
        # The own figure follows from the use of the resource.
        factor = max(0.01, node.value / spec.sweet_point)
        if kind is NetworkNode:
            factor = max(0.01, node.value / 8000)
        reading = ServiceReading(node.service.service, 5e6 * factor**2, 0)
        snapshot = replace(node.snapshot(tick * TICK_NS), services=(reading,))
        plans.append(planner.step(snapshot, outcomes))
        outcomes = node.execute(plans[-1].actions)
    loops = {(loop.indicator, loop.channel) for loop in plans[-1].loops}
    assert (IndicatorName.SERVICE, channel_of(node)) in loops
    last = next(each for each in plans[-1].loops if each.indicator is IndicatorName.SERVICE)
    assert last.filtered_deviation is not None
    assert last.filtered_deviation < 0.5


def test_a_link_that_is_added_does_not_disturb_the_cache() -> None:
    node = CacheNode(1)
    loop = closed(node)
    before = loop.run(60)[-1]
    link = NetworkNode(1).host.links
    host = replace(loop.settings.host, links=link)
    loop.reconfigure(replace(loop.settings, host=host))
    after = loop.run(1)
    assert demands(after, Channel.CACHE)[0] == pytest.approx(
        demands([before], Channel.CACHE)[0], abs=0.05
    )
    assert not any(plan.actions for plan in after)


def test_the_burst_of_a_service_follows_its_profile() -> None:
    node = CacheNode(1)
    service = Target(TargetKind.CGROUP, "cpu", node.service.cgroup.id, node.service.path)
    node.knobs.add(service, Knob.CPU_QUOTA, KnobValue("150000 100000 0"))
    settings = resource_settings(node)
    profile = settings.profiles["default"]
    bursting = replace(settings, profiles={"default": replace(profile, cpu_burst_us=50_000)})
    loop = ClosedLoop(node, bursting)
    loop.run(5)
    assert node.knobs.value(service.id, Knob.CPU_QUOTA) == "150000 100000 50000"
    loop.reconfigure(settings)
    loop.run(1)
    assert node.knobs.value(service.id, Knob.CPU_QUOTA) == "150000 100000 0"


def test_sched_idle_is_set_on_the_cgroup_that_the_workload_names() -> None:
    node = CacheNode(1)
    parent = Target(TargetKind.CGROUP, "cpu", 555, "/batch.slice")
    node.knobs.add(parent, Knob.SCHED_IDLE, KnobValue("0 1024"))
    node.best_effort = [each._replace(idle_at=parent) for each in node.best_effort]
    settings = resource_settings(node)
    profile = replace(settings.profiles["default"], sched_idle=True)
    loop = ClosedLoop(node, replace(settings, profiles={"default": profile}))
    loop.run(2)
    assert node.knobs.value(555, Knob.SCHED_IDLE) == "1"
    assert node.knobs.value(node.best_effort[0].cgroup.id, Knob.SCHED_IDLE) == "0 1024"
    # The place moves down: the knob of the old cgroup is restored.
    node.best_effort = [each._replace(idle_at=None) for each in node.best_effort]
    loop.planner.set_workloads(node.workloads)
    loop.run(1)
    assert node.knobs.value(555, Knob.SCHED_IDLE) == "0 1024"
    assert node.knobs.value(node.best_effort[0].cgroup.id, Knob.SCHED_IDLE) == "1"


@pytest.mark.parametrize("overlap", [0.5, 0.01, None])
def test_cookies_are_used_where_cores_are_shared(overlap: float | None) -> None:
    node = CacheNode(1)
    group = Target(TargetKind.CORE_GROUP, "core", 9, "best-effort")
    node.knobs.add(group, Knob.CORE_COOKIE, KnobValue("0"))
    settings = resource_settings(node)
    profile = replace(settings.profiles["default"], sched_idle=True)
    core = CoreSettings(mode=CoreMode.AUTO)
    settings = replace(settings, profiles={"default": profile}, core=core)
    planner = Planner(settings, node.workloads)
    outcomes: Sequence[Outcome] = ()
    for tick in range(60 * TICKS_PER_S):
        node.scale = 1.2 if node.knobs.value(9, Knob.CORE_COOKIE) == "0" else 1.0
        snapshot = replace(node.snapshot(tick * TICK_NS), core_overlap_ratio=overlap)
        outcomes = node.execute(planner.step(snapshot, outcomes).actions)
    shared = overlap == 0.5
    assert node.knobs.value(9, Knob.CORE_COOKIE) == ("best-effort" if shared else "0")
    # Without a service the cookie is restored.
    planner.set_workloads(node.best_effort)
    for tick in range(60 * TICKS_PER_S, 62 * TICKS_PER_S):
        outcomes = node.execute(planner.step(node.snapshot(tick * TICK_NS), outcomes).actions)
    assert node.knobs.value(9, Knob.CORE_COOKIE) == "0"


def test_links_that_are_no_longer_shaped_are_not_a_dead_source() -> None:
    node = NetworkNode(1)
    loop = closed(node)
    assert loop.run(2)[-1].off == ()
    loop.reconfigure(replace(loop.settings, mode=Mode.OBSERVE))
    for tick in range(20):
        unshaped = replace(node.snapshot((loop.tick + tick) * TICK_NS), links=())
        plan = loop.planner.step(unshaped, ())
    assert [each.indicator for each in plan.off] == [IndicatorName.NET_BACKLOG]
    assert not plan.safe


def test_a_quota_that_cannot_be_moved_any_more_ends_a_trial_of_the_rungs() -> None:
    node = CacheNode(1)
    loop = ClosedLoop(node, resource_settings(node, law=LAW))
    plan = loop.run(5)[-1]
    assert [each.knob for each in plan.rungs if each.part > 0] == [Knob.CPU_QUOTA]
    assert node.percent == 100, "the squeeze begins with the quota alone"
    for each in node.best_effort:
        node.knobs.refused.add((each.cgroup.id, Knob.CPU_QUOTA))
        node.knobs.write(each.cgroup.id, Knob.CPU_QUOTA, KnobValue("max 100000 0"))
    loop.run(10)
    assert node.percent < 100
    assert statistics.mean(filtered(loop.run(30))) < 0.3
