# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A full squeeze of one to a thousand best-effort workloads."""

from dataclasses import replace

import pytest

from controller.core.knob_values import parse_quota
from controller.core.model import Knob, Pause
from controller.core.settings import SafeState
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import LAW, ClosedLoop, make_settings

CPUS = 16
# More than 2 % of the machine at 1 mcpu each.
MANY = 400
MOST_CPUS = 0.02 * CPUS * 1.01


def squeezed(
    workloads: int = MANY, parent: bool = True, refused: bool = False
) -> ClosedLoop[SimulatedNode]:
    """Return a loop at full squeeze; *refused*: the kernel refuses the quota of the parent."""
    law = replace(LAW, verify_squeeze=False)
    plant = Plant(cpus=CPUS, p99_at_cpus=0.05, noise=0.0)
    node = SimulatedNode(1, plant, wants=[CPUS / workloads] * workloads)
    if parent:
        node.join_parent()
    if refused:
        assert node.parent is not None
        node.refused = {(node.parent.id, Knob.CPU_QUOTA)}
    loop = ClosedLoop(node, make_settings(cpus=CPUS, law=law))
    assert loop.run(15)[-1].demands[0].applied == pytest.approx(1.0)
    return loop


def parent_cpus(loop: ClosedLoop[SimulatedNode]) -> float | None:
    """Return what the quota of the common parent allows."""
    assert loop.node.parent is not None
    return parse_quota(loop.node.value_of(loop.node.parent.id, Knob.CPU_QUOTA)).cpus


def granted(loop: ClosedLoop[SimulatedNode]) -> float:
    """Return the CPUs that all quotas allow together."""
    own = sum(cpus or CPUS for cpus in loop.granted_cpus())
    common = None if loop.node.parent is None else parent_cpus(loop)
    return own if common is None else min(own, common)


@pytest.mark.parametrize(
    "workloads", [1, 10, 100, 320, pytest.param(1000, marks=pytest.mark.thorough)]
)
def test_a_full_squeeze_leaves_two_per_cent_of_the_machine(workloads: int) -> None:
    assert granted(squeezed(workloads)) <= MOST_CPUS


@pytest.mark.thorough
def test_without_a_common_parent_a_thousand_keep_the_least_quota_of_the_kernel() -> None:
    assert granted(squeezed(1000, parent=False)) == pytest.approx(1.001)


def test_few_workloads_need_no_common_quota() -> None:
    assert parent_cpus(squeezed(300)) is None


def test_a_squeeze_that_ends_restores_the_parent() -> None:
    loop = squeezed()
    loop.node.request_rate = 0.0
    loop.run(60)
    assert parent_cpus(loop) is None
    assert loop.granted_cpus() == [None] * MANY


def test_a_service_below_the_parent_ends_its_quota_at_once() -> None:
    loop = squeezed()
    assert parent_cpus(loop) is not None
    # The node finds another cgroup below the parent: no workload has this parent any more.
    loop.node.best_effort = [each._replace(quota_at=None) for each in loop.node.best_effort]
    loop.planner.set_workloads(loop.node.workloads)
    loop.step()
    assert parent_cpus(loop) is None
    loop.run(5)
    assert granted(loop) == pytest.approx(MANY / 1000, rel=0.01)


def test_a_paused_workload_is_not_limited_by_its_parent() -> None:
    loop = squeezed()
    loop.pause = Pause(workloads=(loop.node.best_effort[7].name,))
    loop.step()
    assert parent_cpus(loop) is None
    assert loop.granted_cpus()[7] is None


def test_a_parent_that_cannot_be_written_leaves_the_own_quotas() -> None:
    loop = squeezed(refused=True)
    assert parent_cpus(loop) is None
    assert granted(loop) == pytest.approx(MANY / 1000, rel=0.002)


def test_the_floor_of_the_safe_state_leaves_two_per_cent_too() -> None:
    plant = Plant(cpus=CPUS, noise=0.0)
    node = SimulatedNode(1, plant, wants=[CPUS / MANY] * MANY)
    node.join_parent()
    loop = ClosedLoop(node, make_settings(cpus=CPUS, safe_state=SafeState.FLOOR))
    node.blind = True
    loop.run(5)
    assert granted(loop) <= MOST_CPUS


def test_a_long_squeeze_writes_nothing_more() -> None:
    loop = squeezed()
    assert not [action for plan in loop.run(20) for action in plan.actions]
    assert granted(loop) <= MOST_CPUS
