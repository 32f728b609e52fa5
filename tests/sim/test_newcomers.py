# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort workloads that start, or begin to use CPUs, while others are squeezed."""

import pytest

from controller.core.decision import Plan
from controller.core.knob_values import cpus_of, parse_quota
from controller.core.model import Knob, Workload
from controller.core.tuning import DEFAULT_LIMITS
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import TICKS_PER_S, ClosedLoop, make_settings, make_spec

FLOOR = DEFAULT_LIMITS[Knob.CPU_QUOTA].floor


def squeezed(node: SimulatedNode) -> ClosedLoop[SimulatedNode]:
    """Return a loop whose sweet point is out of reach: the total stays at the floor."""
    return ClosedLoop(node, make_settings(make_spec(1e5)))


def quota_cpus(plan: Plan, job: Workload) -> list[float | None]:
    """Return the quotas that *plan* writes to *job*, in CPUs."""
    return [
        cpus_of(each.value)
        for each in plan.actions
        if each.target.id == job.cgroup.id and each.knob is Knob.CPU_QUOTA
    ]


@pytest.mark.parametrize("later", range(TICKS_PER_S))
@pytest.mark.parametrize("want", [0.0, 1.0])
def test_a_new_workload_has_its_quota_in_its_first_tick(later: int, want: float) -> None:
    loop = squeezed(SimulatedNode(1, Plant(noise=0.2)))
    loop.run(20 + later / TICKS_PER_S)
    job = loop.node.join(want)
    loop.planner.set_workloads(loop.node.workloads)
    assert quota_cpus(loop.step(), job) == [pytest.approx(FLOOR, rel=0.01)]


@pytest.mark.parametrize("later", range(TICKS_PER_S))
def test_at_the_floor_a_hog_that_wakes_up_has_its_quota_once_its_use_is_known(later: int) -> None:
    loop = squeezed(SimulatedNode(1, Plant(noise=0.2), wants=(1.5, 0.5, 0.0)))
    loop.run(20 + later / TICKS_PER_S)
    loop.node.wants[-1] = 1.0
    loop.step()  # a rate needs two readings of the counter
    assert quota_cpus(loop.step(), loop.node.best_effort[-1])


def test_a_busy_newcomer_does_not_stay_at_the_floor() -> None:
    node = SimulatedNode(1, Plant(noise=0.0), wants=(1.0, 1.0))
    loop = ClosedLoop(node, make_settings(make_spec(8e6)))
    loop.run(60)
    loop.node.join(1.0)
    loop.planner.set_workloads(loop.node.workloads)
    loop.run(60)
    *others, new = (cpus or 0.0 for cpus in loop.granted_cpus())
    assert min(others) > 3 * FLOOR
    assert new > 0.8 * max(others)


def test_without_a_squeeze_a_newcomer_has_no_quota() -> None:
    loop = ClosedLoop(SimulatedNode(1, Plant(p99_ns=1e3, noise=0.0)), make_settings())
    loop.run(20)
    job = loop.node.join(1.0)
    loop.planner.set_workloads(loop.node.workloads)
    assert not any(quota_cpus(plan, job) for plan in loop.run(20))


def test_the_quota_of_a_newcomer_that_sleeps_ends_with_the_squeeze() -> None:
    loop = squeezed(SimulatedNode(1, Plant(noise=0.0)))
    loop.run(20)
    job = loop.node.join(0.0)
    loop.planner.set_workloads(loop.node.workloads)
    loop.run(20)
    assert parse_quota(loop.node.value(job, Knob.CPU_QUOTA)).cpus is not None
    loop.node.request_rate = 0.0
    loop.node.wants = [0.0 for _ in loop.node.wants]
    loop.run(300)
    assert loop.granted_cpus() == [None] * 3
