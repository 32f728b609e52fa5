# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Why a service is slow, on simulated nodes with one known cause each."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.core.decision import ChannelState, Plan, SlowBecause
from controller.core.model import (
    Channel,
    IndicatorName,
    Mode,
    ServiceReading,
    Snapshot,
    Workload,
    WorkloadSample,
)
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.sim.plants import DiskWaitNode, MemoryNode, NetworkNode, ResourceNode
from tests.support.loops.closed_loop import (
    ClosedLoop,
    make_settings,
    make_spec,
    with_sweet_point,
)
from tests.support.loops.resource_loop import closed


def becauses(plans: list[Plan]) -> set[SlowBecause]:
    return {each.because for plan in plans for each in plan.slow}


def hog() -> SimulatedNode:
    return SimulatedNode(1)


def throttled() -> SimulatedNode:
    node = SimulatedNode(1)
    node.throttled_ratio = 0.2
    return node


def stolen() -> SimulatedNode:
    node = SimulatedNode(1, Plant(threads=1), wants=(0.1,))
    node.steal_ratio = 0.6
    return node


class Crowded(SimulatedNode):
    """A node whose host takes CPU time, and whose service has more tasks than CPUs."""

    OWN_WAIT = 40.0  # of its tasks for each other, as a multiple of their CPU time

    def _sample(self, workload: Workload) -> WorkloadSample:
        sample = super()._sample(workload)
        whole_ns, oncpu_ns = sample.wait_total_ns, sample.oncpu_ns
        if whole_ns is None or oncpu_ns is None:
            return sample
        return sample._replace(wait_total_ns=whole_ns + round(self.OWN_WAIT * oncpu_ns))


def crowded() -> SimulatedNode:
    node = Crowded(1, Plant(threads=1), wants=(0.1,))
    node.steal_ratio = 0.6
    return node


@pytest.mark.parametrize(
    ("make", "because"),
    [
        (hog, SlowBecause.BEST_EFFORT),
        (throttled, SlowBecause.OWN_QUOTA),
        (stolen, SlowBecause.HOST),
        (crowded, SlowBecause.OWN_TASKS),
    ],
)
def test_waits_for_a_cpu(make: Callable[[], SimulatedNode], because: SlowBecause) -> None:
    loop = ClosedLoop(make())
    begin = loop.run(10)
    found = [each for plan in begin[25:] for each in plan.slow]
    assert {each.because for each in found} == {because}
    told = [each.text for plan in begin for each in plan.verdicts if each.text.startswith("slow (")]
    assert len(told) == 1
    assert told[0].startswith(f"slow ({because}")


def test_a_service_that_is_well_is_not_slow() -> None:
    assert not becauses(ClosedLoop(SimulatedNode(1, wants=(0.01,))).run(30))


class WithFigure(SimulatedNode):
    """A node whose service has a figure of four times its sweet point, and no other indicator."""

    value_ns = 80e6

    def snapshot(self, now_ns: int) -> Snapshot:
        figure = ServiceReading(service="web-0", value=self.value_ns, age_ns=0)
        return replace(super().snapshot(now_ns), services=(figure,))


FIGURE = replace(make_spec(20e6), name=IndicatorName.SERVICE, channel=Channel.CACHE, min_samples=0)


# Its tasks hardly wait for a CPU.
QUICK = Plant(quiet_p99_ns=2e3, p99_ns=1e3, free_jump=1.0)


@pytest.mark.parametrize(
    ("plant", "wants", "because"),
    [
        (QUICK, 0.005, SlowBecause.ELSEWHERE),
        # Best-effort work has most of the CPU time, so a squeeze is tried.
        (QUICK, 1.5, SlowBecause.UNKNOWN),
        (Plant(), 1.5, SlowBecause.BEST_EFFORT),
    ],
)
def test_a_figure_alone(plant: Plant, wants: float, because: SlowBecause) -> None:
    settings = make_settings(FIGURE, mode=Mode.OBSERVE)
    plans = ClosedLoop(WithFigure(1, plant, wants=(wants,)), settings).run(10)
    assert becauses(plans[25:]) == {because}


def test_stolen_time_explains_a_figure_without_waits() -> None:
    node = WithFigure(1, QUICK, wants=(0.005,))
    node.steal_ratio = 0.2
    plans = ClosedLoop(node, make_settings(FIGURE, mode=Mode.OBSERVE)).run(10)
    assert becauses(plans[25:]) == {SlowBecause.HOST}


def test_a_squeeze_that_did_not_help_leaves_another_cause() -> None:
    loop = ClosedLoop(WithFigure(1, QUICK), make_settings(FIGURE))
    assert becauses(loop.run(300)[-5:]) == {SlowBecause.ELSEWHERE}


@pytest.mark.parametrize(
    ("times", "because"), [(1.0, SlowBecause.ELSEWHERE), (2.0, SlowBecause.OWN_LOAD)]
)
def test_more_load_than_while_it_was_well(times: float, because: SlowBecause) -> None:
    """The load rises a moment before the service suffers, so a moment is not "well"."""
    node = WithFigure(1, QUICK, wants=(0.005,))
    settings = make_settings(FIGURE, mode=Mode.OBSERVE)
    loop = ClosedLoop(node, with_sweet_point(settings, 100e6))
    loop.run(40)
    node.request_rate *= times
    loop.run(3)
    loop.planner.reconfigure(settings, node.workloads)
    assert becauses(loop.run(10)[25:]) == {because}


def test_a_verdict_that_flickers_is_told_once() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node, make_settings(mode=Mode.OBSERVE))
    plans = loop.run(10)
    for _ in range(10):
        node.throttled_ratio = 0.2
        plans += loop.run(1)
        node.throttled_ratio = 0.0
        plans += loop.run(4)
    told = [each.text for plan in plans for each in plan.verdicts if each.text.startswith("slow (")]
    assert len(told) == 1
    assert SlowBecause.OWN_QUOTA in becauses(plans)


def with_own_limit() -> MemoryNode:
    node = MemoryNode(1)
    node.own_hits = 1.0
    return node


def by_itself(kind: type[ResourceNode]) -> ResourceNode:
    node = kind(1)
    node.wants = [want / 1000 for want in node.wants]
    node.scale = 500.0
    return node


def with_little_best_effort() -> DiskWaitNode:
    node = DiskWaitNode(1)
    node.service_rate = 6 * node.bandwidth
    return node


@pytest.mark.parametrize(
    ("make", "because"),
    [
        (lambda: MemoryNode(1), SlowBecause.BEST_EFFORT),
        (with_own_limit, SlowBecause.OWN_MEMORY),
        (lambda: NetworkNode(1), SlowBecause.BEST_EFFORT),
        (lambda: by_itself(NetworkNode), SlowBecause.LINK),
        (lambda: DiskWaitNode(1), SlowBecause.BEST_EFFORT),
        (lambda: by_itself(DiskWaitNode), SlowBecause.DISK),
        (with_little_best_effort, SlowBecause.DISK),
        (lambda: by_itself(MemoryNode), SlowBecause.OWN_TASKS),
    ],
)
def test_resources(make: Callable[[], ResourceNode], because: SlowBecause) -> None:
    assert becauses(closed(make()).run(10)[10:]) == {because}


def test_best_effort_work_is_named_while_it_is_squeezed_for_less_than_half() -> None:
    node = DiskWaitNode(1)
    node.service_rate = 2 * node.bandwidth
    plans = closed(node).run(10)
    squeezed = [
        plan for plan in plans if any(each.state is ChannelState.SQUEEZE for each in plan.demands)
    ]
    assert becauses(squeezed) == {SlowBecause.BEST_EFFORT}
    assert all((each.share or 1.0) < 0.5 for plan in squeezed for each in plan.slow)
