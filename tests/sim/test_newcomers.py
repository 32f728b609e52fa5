# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort workloads that start, or begin to use CPUs, while others are squeezed."""

import pytest

from controller.core.model import Knob
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import TICKS_PER_S, ClosedLoop, make_settings, make_spec


@pytest.mark.parametrize("later", range(TICKS_PER_S))
@pytest.mark.parametrize("sleeps", [False, True])
def test_at_the_floor_a_new_hog_has_its_quota_once_its_use_is_known(
    later: int, sleeps: bool
) -> None:
    # The sweet point is out of reach, so the total stays at the floor and never moves.
    loop = ClosedLoop(SimulatedNode(1, Plant(noise=0.2)), make_settings(make_spec(1e5)))
    loop.run(20 + later / TICKS_PER_S)
    hog = loop.node.join(0.0 if sleeps else 1.0)
    loop.planner.set_workloads(loop.node.workloads)
    if sleeps:
        loop.run(1)
        loop.node.wants[-1] = 1.0
    loop.step()  # a rate needs two readings of the counter
    actions = [each for each in loop.step().actions if each.target.id == hog.cgroup.id]
    assert Knob.CPU_QUOTA in {each.knob for each in actions}
