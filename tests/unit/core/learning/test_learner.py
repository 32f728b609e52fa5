# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Learned sweet points in the planner, from snapshots of a service beside other work."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
import math
from random import Random

import pytest

from controller.core.decision import LearnedReport, Plan
from controller.core.indicators.measurement import BUCKETS
from controller.core.learning.quiet import Disturbance
from controller.core.learning.state import LearnedIndicator
from controller.core.model import (
    Blame,
    CgroupId,
    Channel,
    IndicatorName,
    Mode,
    Pause,
    QosClass,
    ServiceReading,
    Snapshot,
    Workload,
    WorkloadSample,
)
from controller.core.planner import Planner
from controller.core.settings import HostFacts, IndicatorSpec, Settings
from tests.support.loops.closed_loop import (
    SECOND_NS,
    TICK_NS,
    TICKS_PER_S,
    make_settings,
    make_spec,
)

WEB, BATCH = CgroupId("cpu", 1), CgroupId("cpu", 2)
NAME = IndicatorName.CPU_PER_PACKET
SPEC = replace(
    make_spec(),
    name=NAME,
    sweet_point=8e3,
    tolerance=1.15,
    resolution=10.0,
    min_samples=100,
    channel=Channel.CACHE,
    learn=True,
    allow=0.07,
)
OWN = replace(
    make_spec(), name=IndicatorName.SERVICE, sweet_point=5e6, resolution=1e3, min_samples=0
)


def settings_for(*specs: IndicatorSpec, margins: bool = True) -> Settings:
    settings = make_settings(cpus=4, mode=Mode.OBSERVE)
    law = replace(settings.law, margin_by_scatter=margins)
    profile = replace(settings.profiles["default"], indicators=specs)
    host = HostFacts(cpus=4, cpu_model="some cpu")
    return replace(settings, profiles={"default": profile}, host=host, law=law)


def workloads_for(image: str = "web:1") -> list[Workload]:
    return [
        Workload("web", WEB, "/web", QosClass.LS, "web", "default", image=image),
        Workload("batch", BATCH, "/batch", QosClass.BE, "batch", ""),
    ]


@dataclass
class Node:
    """A service with 10,000 packets/s, and work beside it; the fields are changed between runs.

    CPU use in CPUs, CPU time per packet in ns, the service's own latency in ms (``None``: it does
    not report one). ``inflicted`` is the wait that best-effort work inflicts, in CPUs.
    """

    specs: Sequence[IndicatorSpec] = (SPEC,)
    learned: Sequence[LearnedIndicator] = ()
    image: str = "web:1"
    batch: float = 0.0
    outside: float = 0.1
    steal: float = 0.0
    throttled: float = 0.0
    per_packet: float = 6e3
    packets_per_s: float = 10_000.0
    inflicted: float = 0.0
    latency_ms: float | None = None
    pause: Pause | None = None
    margins: bool = True
    now_ns: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    random: Random = field(default_factory=lambda: Random(1))

    def __post_init__(self) -> None:
        settings = settings_for(*self.specs, margins=self.margins)
        workloads = workloads_for(self.image)
        self.planner = Planner(settings, workloads, learned=self.learned)

    def run(self, seconds: float) -> Plan:
        for _ in range(round(seconds * TICKS_PER_S)):
            plan = self.planner.step(self.snapshot(), ())
        return plan

    def report(self, seconds: float = 0.2) -> LearnedReport:
        (report,) = self.run(seconds).learned
        return report

    def grow(self, name: str, rate: float) -> int:
        self.counts[name] = self.counts.get(name, 0.0) + rate * TICK_NS / SECOND_NS
        return round(self.counts[name])

    def snapshot(self) -> Snapshot:
        self.now_ns += TICK_NS
        packets = self.packets_per_s
        cpus = packets * self.per_packet * self.random.gauss(1.0, 0.03) / 1e9
        own = self.latency_ms
        web = WorkloadSample(
            WEB,
            oncpu_ns=self.grow("web", cpus * 1e9),
            wait_total_ns=self.grow("wait", self.inflicted * 1e9),
            wait_inflicted_ns=self.grow("inflicted", self.inflicted * 1e9),
            waits=0,
            runq_histogram=(0,) * BUCKETS,
            throttled_ns=self.grow("throttled", self.throttled * 1e9),
            tx_packets=self.grow("tx", packets / 2),
            rx_packets=self.grow("rx", packets / 2),
        )
        return Snapshot(
            time_ns=self.now_ns,
            age_ns=0,
            workloads=(web, WorkloadSample(BATCH, oncpu_ns=self.grow("batch", self.batch * 1e9))),
            blame=(Blame(WEB, BATCH, True, self.grow("blame", self.inflicted * 1e9)),),
            system_oncpu_ns=self.grow("outside", self.outside * 1e9),
            steal_ns=self.grow("steal", self.steal * 1e9),
            services=() if own is None else (ServiceReading("web", own * 1e6, 0),),
            pause=self.pause,
        )


def test_the_sweet_point_is_learned_within_two_minutes_without_a_disturbance() -> None:
    node = Node()
    early = node.report(30)
    assert (early.is_sure, early.sweet_point, early.disturbance) == (False, 8e3, "")
    assert 0.3 < early.certainty < 0.6
    late = node.report(60)
    assert late.is_sure
    assert late.sweet_point == pytest.approx(6.45e3, rel=0.03)
    assert late.windows == pytest.approx(86, abs=3)
    # The loop has it.
    (loop,) = node.run(0.2).loops
    assert loop.sweet_point == late.sweet_point


def test_becoming_sure_is_told_once() -> None:
    node = Node()
    texts = []
    for _ in range(150 * TICKS_PER_S):
        plan = node.planner.step(node.snapshot(), ())
        texts += [each.text for each in plan.verdicts if each.subject == f"web {NAME}"]
    assert len(texts) == 1
    assert texts[0].startswith("learned a sweet point of 6.")
    assert "that of the profile is 8us (" in texts[0]


@pytest.mark.parametrize(
    ("changes", "disturbance"),
    [
        ({"batch": 0.3}, Disturbance.BEST_EFFORT),
        ({"outside": 2.0}, Disturbance.OUTSIDE),
        ({"steal": 0.5}, Disturbance.STEAL),
        ({"throttled": 0.05}, Disturbance.THROTTLED),
        ({"packets_per_s": 0.0}, Disturbance.NO_LOAD),
        ({"packets_per_s": 20.0, "per_packet": 1e6}, Disturbance.NO_LOAD),
    ],
)
def test_what_disturbs_a_service_from_the_start_does_not_become_normal(
    changes: dict[str, float], disturbance: Disturbance
) -> None:
    node = Node()
    node.run(1)
    for name, value in changes.items():
        setattr(node, name, value)
    if "packets_per_s" not in changes:
        node.per_packet = 9e3
    report = node.report(300)
    assert (report.is_sure, report.sweet_point) == (False, 8e3)
    assert report.disturbance == disturbance
    assert report.windows <= 1


def test_a_start_beside_a_hog_is_made_good_when_the_hog_ends() -> None:
    node = Node(batch=2.0, per_packet=8e3)
    assert not node.report(120).is_sure
    node.batch, node.per_packet = 0.0, 6e3
    # The CPU use is an average over two seconds.
    assert node.report(10).disturbance == Disturbance.SETTLING
    report = node.report(80)
    assert report.sweet_point == pytest.approx(6.45e3, rel=0.03)
    # A hog that returns does not move it.
    node.batch, node.per_packet = 2.0, 8e3
    assert node.report(300).sweet_point == report.sweet_point


@pytest.mark.parametrize("channel", [Channel.CACHE, Channel.CPU])
@pytest.mark.parametrize("pause", [Pause(everything=True), Pause(workloads=("batch",))])
def test_a_hog_that_is_paused_disturbs_like_any_other(channel: Channel, pause: Pause) -> None:
    spec = replace(SPEC, channel=channel)
    node = Node(specs=(spec,), batch=2.0, inflicted=0.5, per_packet=9e3, pause=pause)
    report = node.report(300)
    assert (report.is_sure, report.sweet_point) == (False, 8e3)
    assert report.disturbance == Disturbance.PAUSED
    # A pause without a hog disturbs nothing.
    node.batch, node.inflicted, node.per_packet = 0.0, 0.0, 6e3
    assert node.report(120).is_sure


def test_nothing_is_learned_while_the_service_misses_its_objective() -> None:
    node = Node(specs=(SPEC, OWN), latency_ms=7.0)
    assert node.report(120).disturbance == Disturbance.SUFFERS
    node.latency_ms = 3.0
    assert node.report(90).is_sure


def test_on_the_cpu_channel_work_that_inflicts_no_wait_does_not_disturb() -> None:
    spec = replace(SPEC, channel=Channel.CPU)
    node = Node(specs=(spec,), batch=2.0, inflicted=0.0001)
    assert node.report(120).is_sure
    assert node.planner.neighbours == (Disturbance.BEST_EFFORT,)
    other = Node(specs=(spec,), batch=2.0, inflicted=0.01)
    assert other.report(120).disturbance == Disturbance.BEST_EFFORT


def test_a_sweet_point_without_a_value_demands_nothing_until_it_is_learned() -> None:
    node = Node(specs=(replace(SPEC, sweet_point=None),))
    plan = node.run(30)
    (loop,) = plan.loops
    assert (loop.sweet_point, loop.demand) == (None, 0.0)
    assert loop.value is not None
    (loop,) = node.run(60).loops
    assert loop.sweet_point == pytest.approx(6.45e3, rel=0.03)


def test_another_planner_goes_on_with_what_was_learned() -> None:
    node = Node()
    report = node.report(200)
    again = Node(learned=node.planner.learned)
    assert again.planner.learned == node.planner.learned
    found = again.run(3)
    assert found.loops[0].sweet_point == pytest.approx(report.sweet_point, rel=0.02)
    assert found.learned[0].windows >= report.windows


@pytest.mark.parametrize(
    ("image", "cpu", "tolerance"),
    [
        ("web:2", "", SPEC.tolerance),
        ("web:1", "another cpu", SPEC.tolerance),
        ("web:1", "", 1.3),
    ],
)
def test_what_was_learned_is_forgotten_with_the_image_and_the_cpu(
    image: str, cpu: str, tolerance: float
) -> None:
    node = Node()
    node.run(200)
    settings = settings_for(replace(SPEC, tolerance=tolerance))
    host = replace(settings.host, cpu_model=cpu or settings.host.cpu_model)
    workloads = workloads_for(image)
    node.planner.reconfigure(replace(settings, host=host), workloads)
    plan = node.run(1)
    assert plan.loops[0].sweet_point == 8e3
    assert not plan.learned[0].is_sure


def test_a_service_that_leaves_the_node_for_a_while_is_remembered() -> None:
    node = Node()
    report = node.report(200)
    node.planner.set_workloads(workloads_for()[1:])
    assert node.run(60).learned == ()
    node.planner.set_workloads(workloads_for(image=""))  # not on the list of the API server yet
    plan = node.run(2)
    assert plan.loops[0].sweet_point == pytest.approx(report.sweet_point, rel=0.02)


def test_a_pod_with_another_image_for_a_while_ends_nothing() -> None:
    node = Node()
    report = node.report(200)
    canary = workloads_for("web:2")[0]._replace(name="web-2", cgroup=CgroupId("cpu", 9))
    node.planner.set_workloads([*workloads_for(), canary])
    node.run(2)
    node.planner.set_workloads(workloads_for())
    found = node.run(2).learned[0]
    assert found.windows >= report.windows
    assert found.is_sure


@pytest.mark.parametrize("is_time", [False, True])
@pytest.mark.parametrize("figure", [-1.0, 0.0, 1e-323, 1e300])
def test_no_figure_of_a_service_ends_a_tick(figure: float, is_time: bool) -> None:
    own = replace(OWN, is_time=is_time, sweet_point=0.8, objective=1.0, resolution=1e-3)
    node = Node(specs=(SPEC, own))
    node.batch, node.latency_ms = 1.0, figure / 1e6
    plan = node.run(3)
    assert len(plan.loops) == 2
    assert all(loop.deviation is not None for loop in plan.loops)


def test_the_latency_counts_once_for_all_indicators() -> None:
    name = IndicatorName.WAIT_RATIO
    other = replace(SPEC, name=name, sweet_point=0.3, resolution=0.01, min_samples=0)
    node = Node(specs=(SPEC, other, OWN), latency_ms=1.0)
    node.run(30)
    windows = {
        each.indicator: max((load.windows for load in each.loads), default=0)
        for each in node.planner.learned
    }
    assert windows[name] > 20
    assert windows[NAME] > 20
    assert windows[IndicatorName.SERVICE] <= 31


def test_an_equal_configuration_hides_no_verdict() -> None:
    node = Node()
    texts = []
    for number in range(150 * TICKS_PER_S):
        if number % TICKS_PER_S == 0:
            node.planner.reconfigure(settings_for(replace(SPEC)), workloads_for())
        plan = node.planner.step(node.snapshot(), ())
        texts += [each.text for each in plan.verdicts if each.subject == f"web {NAME}"]
    assert len(texts) == 1
    assert texts[0].startswith("learned a sweet point of 6.")


def test_the_objective_becomes_the_sweet_point() -> None:
    """The latency grows with the CPU time per packet and reaches its objective at 1.3 times."""
    node = Node(specs=(SPEC, OWN))
    node.latency_ms = 2.5
    node.run(120)
    random = Random(7)
    for _ in range(150):
        slower = 1.0 + 0.5 * random.random()
        node.batch, node.per_packet = 1.0, 6e3 * slower
        node.latency_ms = 2.5 * slower**2.64
        node.run(10)
    report = node.report()
    assert report.sweet_point is not None
    assert 6.9e3 < report.sweet_point < 7.9e3


def test_another_planner_goes_on_with_the_margin_below_an_objective() -> None:
    own = replace(OWN, sweet_point=4e6, objective=5e6)
    past = LearnedIndicator(
        "web", IndicatorName.SERVICE, "some cpu", "web:1", 2.0, margin=(0.2, 3.0)
    )
    node = Node(specs=(own,), learned=(past,), latency_ms=1.0)
    (loop,) = node.run(1).loops
    assert loop.sweet_point == pytest.approx(5e6 * math.exp(-0.6))
    assert [each.margin for each in node.planner.learned] == [past.margin]
    other = Node(specs=(own,), learned=(past._replace(image="web:2"),), latency_ms=1.0)
    (loop,) = other.run(1).loops
    assert loop.sweet_point == 4e6


def test_without_its_part_of_the_law_the_margin_stays() -> None:
    own = replace(OWN, sweet_point=4e6, objective=5e6)
    past = LearnedIndicator(
        "web", IndicatorName.SERVICE, "some cpu", "web:1", 2.0, margin=(0.2, 3.0)
    )
    node = Node(specs=(own,), learned=(past,), latency_ms=1.0, margins=False)
    (loop,) = node.run(20).loops
    assert loop.sweet_point == 4e6


def test_the_same_snapshots_give_the_same_sweet_points() -> None:
    first, second = Node(), Node()
    assert [first.run(1) for _ in range(100)] == [second.run(1) for _ in range(100)]
    assert first.planner.learned == second.planner.learned
