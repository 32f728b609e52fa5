# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Properties of the planner under random disturbances."""

from collections.abc import Sequence
from dataclasses import replace
import math

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from controller.core.decision import Action, Failure, Outcome, Plan
from controller.core.indicators.measurement import BUCKETS
from controller.core.knob_values import parse_quota
from controller.core.model import Blame, Knob, KnobValue, Mode, Pause, QosClass, Snapshot
from controller.core.planner import Planner
from controller.core.settings import Settings
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.histogram import index_of
from tests.support.loops.closed_loop import TICK_NS, ClosedLoop, make_settings

# Two floors of 50 mcpu, divided by up to four workloads.
FLOOR = 0.025
OPERATORS = st.sampled_from(
    [KnobValue("max 100000 0"), KnobValue("40000 100000 0"), KnobValue("150000 50000 2000")]
)


class Feed:
    """Synthetic snapshots: each tick sets the waits; all else stays equal."""

    def __init__(self) -> None:
        self.node = SimulatedNode(0, wants=(1.0, 0.5))
        self.histogram = [0] * BUCKETS
        self.oncpu_ns = 0
        self.tick = 0
        self.blame = (0, 0)

    def snapshot(self, wait_ns: int) -> Snapshot:
        self.tick += 1
        self.histogram[index_of(wait_ns)] += 300
        self.oncpu_ns += TICK_NS // 5
        base = self.node.snapshot(0)
        samples = []
        for sample in base.workloads:
            if sample.runq_histogram is not None:
                samples.append(
                    sample._replace(
                        oncpu_ns=self.oncpu_ns,
                        waits=sum(self.histogram),
                        runq_histogram=tuple(self.histogram),
                        wait_inflicted_ns=self.oncpu_ns,
                    )
                )
            else:
                samples.append(sample._replace(oncpu_ns=2 * self.oncpu_ns))
        victim = self.node.sensitive[0].cgroup
        blame = tuple(
            Blame(victim, each.cgroup, True, self.oncpu_ns // 2) for each in self.node.best_effort
        )
        now_ns = self.tick * TICK_NS
        return replace(base, time_ns=now_ns, age_ns=0, workloads=tuple(samples), blame=blame)


def planned(waits_ns: Sequence[int], settings: Settings) -> Plan:
    feed = Feed()
    planner = Planner(settings, feed.node.workloads)
    outcomes: tuple[Outcome, ...] = ()
    for wait_ns in waits_ns:
        plan = planner.step(feed.snapshot(wait_ns), outcomes)
        outcomes = feed.node.execute(plan.actions)
    return plan


def allowed_cpus(plan: Plan) -> float:
    return math.inf if plan.quota_granted_cpus is None else plan.quota_granted_cpus


WAITS = st.integers(10_000, 100_000_000)


@given(st.lists(WAITS, min_size=2, max_size=40), WAITS, WAITS)
@hypothesis_settings(max_examples=100, deadline=None)
def test_more_deviation_never_gives_best_effort_more(
    history: list[int], one: int, other: int
) -> None:
    less, more = sorted((one, other))
    settings = make_settings()
    calm, hurt = planned([*history, less], settings), planned([*history, more], settings)
    assert calm.loops[0].deviation is not None
    assert hurt.loops[0].deviation is not None
    assert calm.loops[0].deviation <= hurt.loops[0].deviation
    assert calm.demands[0].applied <= hurt.demands[0].applied
    assert allowed_cpus(hurt) <= allowed_cpus(calm)


@given(st.lists(WAITS, min_size=2, max_size=60))
@hypothesis_settings(max_examples=50, deadline=None)
def test_demand_is_bounded_for_all_waits(history: list[int]) -> None:
    plan = planned(history, make_settings())
    assert 0.0 <= plan.demands[0].applied <= 1.0
    assert 0.0 <= plan.demands[0].wanted <= 1.0


DISTURBANCE = st.sampled_from(
    (
        *("nothing", "nothing", "nothing", "leave", "unlisted", "refuse", "obey"),
        *("blind", "see", "late", "lost", "foreign", "load", "calm"),
        *("pause", "pause one", "resume"),
    )
)


class DisturbedLoop:
    """A closed loop with a disturbance before every tick."""

    def __init__(self, seed: int, operators: Sequence[KnobValue]) -> None:
        self.node = SimulatedNode(
            seed, Plant(noise=0.3), wants=[0.7] * len(operators), quotas=operators
        )
        self.loop = ClosedLoop(self.node, make_settings(sched_idle=True))
        self.away: list[int] = []
        self.actions: list[Action] = []
        self.pause: Pause | None = None
        self.once_refused: set[int] = set()

    def step(self, disturbance: str, index: int) -> None:
        node = self.node
        batch = node.best_effort[index % len(node.best_effort)] if node.best_effort else None
        if disturbance == "leave" and batch is not None:
            node.leave(index % len(node.best_effort))
            self.loop.planner.set_workloads(node.workloads)
        elif disturbance == "unlisted" and batch is not None:
            # The cgroup is gone from the kernel, but not yet from the list of workloads.
            node.leave(index % len(node.best_effort))
        elif disturbance == "refuse" and batch is not None:
            node.refused.add((batch.cgroup.id, Knob.CPU_QUOTA))
            self.once_refused.add(batch.cgroup.id)
        elif disturbance == "foreign" and batch is not None:
            node.write(batch, Knob.CPU_QUOTA, KnobValue("70000 100000 0"))
        elif disturbance == "obey":
            node.refused.clear()
        elif disturbance in ("blind", "see"):
            node.blind = disturbance == "blind"
        elif disturbance == "late":
            self.loop.tick += 1 + index
        elif disturbance == "lost":
            self.loop.outcomes = ()
        elif disturbance in ("load", "calm"):
            node.plant = replace(node.plant, p99_ns=5e6 if disturbance == "load" else 1.0)
        elif disturbance == "pause":
            self.pause = Pause(everything=True)
        elif disturbance == "pause one" and batch is not None:
            self.pause = Pause(workloads=(batch.name,))
        elif disturbance == "resume":
            self.pause = None
        before = replace(node.snapshot(self.loop.tick * TICK_NS), pause=self.pause)
        plan = self.loop.planner.step(before, self.loop.outcomes)
        self.check(plan, before)
        self.loop.outcomes = node.execute(plan.actions)
        self.check_pause(plan, before)
        self.loop.tick += 1

    def check_pause(self, plan: Plan, before: Snapshot) -> None:
        """Check that what is paused is restored in this tick and written in no other way."""
        if self.pause is None:
            return
        names = {each.cgroup.id: each.name for each in self.node.workloads}
        originals = {(each.target, each.knob): each.original for each in before.knobs}
        for action in plan.actions:
            if self.pause.covers_workload(names.get(action.target.id, "")):
                assert action.value == originals[action.target, action.knob]
        held = {
            each.target.id
            for each in self.node.snapshot(before.time_ns).knobs
            if each.original is not None and self.pause.covers_workload(names[each.target.id])
        }
        assert held <= self.once_refused

    def check(self, plan: Plan, snapshot: Snapshot) -> None:
        readings = {(target, knob): value for target, knob, value, _ in snapshot.knobs}
        best_effort = {each.cgroup.id for each in self.node.workloads if each.qos is QosClass.BE}
        written = set()
        for action in plan.actions:
            key = (action.target, action.knob)
            assert key in readings, "an action on a target that does not exist"
            assert key not in written, "two actions on one knob"
            written.add(key)
            assert action.target.id in best_effort
            assert action.value != action.previous
            if action.knob is Knob.CPU_QUOTA:
                cpus = parse_quota(action.value).cpus
                assert cpus is None or cpus >= FLOOR
        assert 0.0 <= plan.demands[0].applied <= 1.0


@given(
    st.integers(0, 1000),
    st.lists(OPERATORS, min_size=1, max_size=4),
    st.lists(st.tuples(DISTURBANCE, st.integers(0, 5)), min_size=5, max_size=60),
)
@hypothesis_settings(max_examples=100, deadline=None)
def test_only_present_workloads_are_written(
    seed: int, operators: list[KnobValue], disturbances: list[tuple[str, int]]
) -> None:
    disturbed = DisturbedLoop(seed, operators)
    for disturbance, index in disturbances:
        disturbed.step(disturbance, index)


@given(
    st.integers(0, 1000),
    st.lists(OPERATORS, min_size=1, max_size=3),
    st.integers(1, 100),
    st.booleans(),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_a_release_ends_at_the_original_and_never_exceeds_it(
    seed: int, operators: list[KnobValue], ticks: int, sched_idle: bool
) -> None:
    node = SimulatedNode(seed, wants=[0.9] * len(operators), quotas=operators)
    loop = ClosedLoop(node, make_settings(sched_idle=sched_idle))
    plans = [loop.step() for _ in range(ticks)]
    by_id = {each.cgroup.id: quota for each, quota in zip(node.best_effort, operators, strict=True)}
    for action in (each for plan in plans for each in plan.actions):
        if action.knob is Knob.CPU_QUOTA:
            most = parse_quota(by_id[action.target.id]).cpus
            cpus = parse_quota(action.value).cpus
            assert action.value == by_id[action.target.id] or (cpus or math.inf) < (
                most or math.inf
            )
    node.sensitive.clear()
    loop.planner.set_workloads(node.workloads)
    loop.run(90)
    for batch, quota in zip(node.best_effort, operators, strict=True):
        assert node.value(batch, Knob.CPU_QUOTA) == quota
        assert node.value(batch, Knob.SCHED_IDLE) == KnobValue("0 1024")


@given(st.integers(0, 1000), st.lists(st.booleans(), min_size=10, max_size=60))
@hypothesis_settings(max_examples=30, deadline=None)
def test_a_value_that_is_in_place_is_never_written_again(seed: int, executed: list[bool]) -> None:
    """A plan has no action for a value that is in place, also when outcomes are lost."""
    node = SimulatedNode(seed)
    planner = Planner(make_settings(mode=Mode.ENFORCE), node.workloads)
    outcomes: tuple[Outcome, ...] = ()
    for tick, reported in enumerate(executed):
        plan = planner.step(node.snapshot(tick * TICK_NS), outcomes)
        for action in plan.actions:
            assert action.value != node.value_of(action.target.id, action.knob)
        outcomes = node.execute(plan.actions)
        assert all(each.failure is not Failure.REFUSED for each in outcomes)
        if not reported:
            outcomes = ()
