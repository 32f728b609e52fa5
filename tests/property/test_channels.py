# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Properties of the channels cache, network, memory and io under random disturbances."""

from dataclasses import replace
import math

from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
import pytest

from controller.core.decision import Action, Outcome, Plan
from controller.core.knob_comparison import is_stricter
from controller.core.knob_values import (
    parse_amount,
    parse_bandwidth,
    parse_disks,
    parse_masks,
    parse_weight,
)
from controller.core.limiters import StepSelector, rescale
from controller.core.model import Knob, KnobReading, KnobValue, Snapshot
from controller.core.planner import Planner
from controller.core.units import NS_PER_SEC
from tests.sim.plants import (
    CacheNode,
    ResourceNode,
)
from tests.support.loops.closed_loop import LAW, TICK_NS, ClosedLoop
from tests.support.loops.resource_loop import KINDS, MEASURES, demands, resource_settings


class Scaled:
    """A node in which each tick sets a factor on the service's figure; all else stays equal."""

    def __init__(self, kind: type[ResourceNode]) -> None:
        self.node = kind(0, noise=0.0)
        # Identified harm moves a cut from one workload to another by what it learned in the tick.
        law = replace(LAW, find_harm=False)
        self.planner = Planner(resource_settings(self.node, law=law), self.node.workloads)
        self.outcomes: tuple[Outcome, ...] = ()
        self.tick = 0

    def step(self, scale: float) -> Plan:
        self.node.scale = scale
        plan = self.planner.step(self.snapshot(), self.outcomes)
        self.outcomes = self.node.execute(plan.actions)
        self.tick += 1
        return plan

    def snapshot(self) -> Snapshot:
        return self.node.snapshot(self.tick * TICK_NS)


def allowances(node: ResourceNode) -> dict[tuple[int, Knob], float]:
    """Return how much of its resource every knob leaves to best-effort work."""
    return {
        (each.target.id, each.knob): allowance(each.knob, each.value) for each in readings(node)
    }


def readings(node: ResourceNode) -> tuple[KnobReading, ...]:
    return node.knobs.readings()


def allowance(knob: Knob, value: KnobValue) -> float:
    if knob is Knob.CPU_QUOTA:
        words = value.split()
        return math.inf if words[0] == "max" else int(words[0]) / int(words[1])
    if knob is Knob.SCHED_IDLE:
        return -float(value.split()[0])
    if knob is Knob.MBA:
        return sum(parse_bandwidth(value).values())
    if knob is Knob.LLC_WAYS:
        return sum(mask.bit_count() for mask in parse_masks(value).values())
    if knob is Knob.TC_CEILING:
        return sum(map(float, value.split()))
    if knob is Knob.IO_MAX:
        return sum(parse_disks(value).values()) or math.inf
    if knob is Knob.IO_WEIGHT:
        return parse_weight(value)
    return parse_amount(value)


SCALES = st.floats(0.05, 20.0)
# A quota is a whole number of microseconds, at least 1,000.
ROUNDING = 1.001


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(SCALES, min_size=3, max_size=30), SCALES, SCALES)
@example([1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 1.0], 1.0, 0.5)
@example([*[1.0] * 11, 2.0, 3.0, 3.5, 2.0, 2.0, 0.0625], 5.0, 6.0)
@hypothesis_settings(max_examples=8, deadline=None)
def test_more_deviation_never_gives_best_effort_more(
    kind: type[ResourceNode], history: list[float], one: float, other: float
) -> None:
    outcome = []
    for last in sorted((one, other)):
        loop = Scaled(kind)
        for scale in history:
            loop.step(scale)
        # The measurement shows a factor one tick later.
        loop.step(last)
        plan = loop.step(last)
        outcome.append((demands([plan], MEASURES[kind][1])[0], allowances(loop.node)))
    (calm, calm_allowances), (hurt, hurt_allowances) = outcome
    assert calm <= hurt
    for key, left in calm_allowances.items():
        assert hurt_allowances[key] <= left * (ROUNDING if key[1] is Knob.CPU_QUOTA else 1.0)


DISTURBANCE = st.sampled_from(("calm", "hurt", "blind", "see", "foreign", "refuse", "obey", "late"))
FOREIGN = {
    Knob.MBA: KnobValue("0=70;1=100"),
    Knob.LLC_WAYS: KnobValue("0=7f;1=7ff"),
    Knob.TC_CEILING: KnobValue("20000000 9000000"),
    Knob.MEMORY_HIGH: KnobValue("3000000000"),
    Knob.IO_WEIGHT: KnobValue("55"),
    Knob.IO_MAX: KnobValue("8:0 wbps=200000000"),
}


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.tuples(DISTURBANCE, st.integers(1, 20)), min_size=3, max_size=25))
@hypothesis_settings(max_examples=8, deadline=None)
def test_knobs_stay_within_their_limits_under_all_disturbances(
    kind: type[ResourceNode], disturbances: list[tuple[str, int]]
) -> None:
    node = kind(3)
    loop = ClosedLoop(node, resource_settings(node))
    originals = {(each.target.id, each.knob): each.value for each in readings(node)}
    for disturbance, ticks in disturbances:
        if disturbance in ("calm", "hurt"):
            node.scale = 0.1 if disturbance == "calm" else 20.0
        elif disturbance in ("blind", "see"):
            node.blind = disturbance == "blind"
        elif disturbance == "late":
            loop.tick += ticks
        elif disturbance == "refuse":
            node.knobs.refused = set(list(originals)[::2])
        elif disturbance == "obey":
            node.knobs.refused = set()
        else:
            for (id_, knob), value in list(originals.items()):
                if knob in FOREIGN and value != FOREIGN[knob]:
                    originals[id_, knob] = FOREIGN[knob]
                    node.knobs.write(id_, knob, FOREIGN[knob])
        for _ in range(ticks):
            written = set()
            for action in loop.step().actions:
                assert (action.target.id, action.knob) not in written, "two actions on one knob"
                written.add((action.target.id, action.knob))
                check(action, originals[action.target.id, action.knob])
    # Without a service all knobs are restored to the values that other programs set.
    node.knobs.refused = set()
    loop.planner.set_workloads(node.best_effort)
    loop.run(120)
    assert {(each.target.id, each.knob): each.value for each in readings(node)} == originals


def check(action: Action, original: KnobValue) -> None:
    assert action.value == original or is_stricter(action.knob, action.value, original)
    if action.knob is Knob.MBA:
        assert all(
            value >= 10 and value % 10 == 0 for value in parse_bandwidth(action.value).values()
        )
    elif action.knob is Knob.LLC_WAYS:
        for mask in parse_masks(action.value).values():
            assert mask.bit_count() >= 2
            assert bin(mask).strip("0b").count("0") == 0, "a hole in the mask"
    elif action.knob is Knob.IO_WEIGHT:
        assert parse_weight(action.value) >= 1


EDGES = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=8).map(
    lambda widths: [sum(widths[:n]) / sum(widths) for n in range(len(widths) + 1)]
)


@given(EDGES, st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_a_level_always_satisfies_the_demand(edges: list[float], parts: list[float]) -> None:
    steps = StepSelector()
    for second, part in enumerate(parts):
        settled = steps.set_part(part, edges, second * 10 * NS_PER_SEC)
        assert part <= edges[steps.level] + 1e-6
        assert (settled is None) is (steps.level == 0)
        assert settled is None or edges[steps.level - 1] - 1e-9 <= settled <= 1.0 + 1e-9


@given(EDGES, EDGES, st.floats(0, 1), st.floats(0, 1))
def test_rescaling_keeps_the_order(
    before: list[float], after: list[float], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert rescale(low, before, after) <= rescale(high, before, after) + 1e-9


def test_replay_is_exact() -> None:
    """Equal snapshots without shared objects give equal plans."""
    node = CacheNode(5)
    settings = resource_settings(node)
    planner = Planner(settings, node.workloads)
    inputs = []
    plans = []
    outcomes: tuple[Outcome, ...] = ()
    for tick in range(200):
        snapshot = node.snapshot(tick * TICK_NS)
        inputs.append((snapshot, outcomes))
        plans.append(planner.step(snapshot, outcomes))
        outcomes = node.execute(plans[-1].actions)
    again = Planner(settings, node.workloads)
    for (snapshot, outcomes), plan in zip(inputs, plans, strict=True):
        knobs = tuple(each._replace() for each in snapshot.knobs)
        assert again.step(replace(snapshot, knobs=knobs), outcomes) == plan
