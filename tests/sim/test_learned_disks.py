# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Waits for disks are learned while best-effort work leaves the disk alone, and not beside it."""

from dataclasses import replace

import pytest

from controller.core.decision import ChannelState
from controller.core.learning.quiet import Disturbance
from controller.core.model import Knob
from tests.sim.plants import DiskWaitNode
from tests.support.loops.closed_loop import ClosedLoop
from tests.support.loops.resource_loop import resource_settings, resource_spec, writes

LEARNING_S = 90


class SleepingDisks(DiskWaitNode):
    """Best-effort work that reads and writes with hardly any CPU."""

    def _cpus(self, index: int) -> float:
        return 0.01


def disks(node: DiskWaitNode) -> ClosedLoop[DiskWaitNode]:
    """Return a loop whose profile learns ``disk_wait``."""
    spec = replace(resource_spec(DiskWaitNode), sweet_point=None, learn=True, allow=1.0)
    return ClosedLoop(node, resource_settings(node, [spec]))


@pytest.mark.parametrize("kind", [DiskWaitNode, SleepingDisks])
def test_waits_for_disks_are_learned_only_without_best_effort_work_on_the_disk(
    kind: type[DiskWaitNode],
) -> None:
    node = kind(1)
    wants, node.wants = node.wants, [0.0, 0.0]
    loop = disks(node)
    plans = loop.run(LEARNING_S)
    (found,) = plans[-1].learned
    own = node.value
    assert found.is_sure
    assert found.sweet_point == pytest.approx(2 * own, rel=0.25)
    assert not writes(plans, Knob.IO_MAX)
    node.wants = wants
    plans = loop.run(60)
    assert writes(plans, Knob.IO_MAX)
    assert plans[-1].learned[0].windows <= found.windows + 1

    node = kind(1)
    plans = disks(node).run(LEARNING_S)
    (found,) = plans[-1].learned
    assert (found.is_sure, found.windows) == (False, 0)
    running = kind is DiskWaitNode
    assert found.disturbance == (Disturbance.BEST_EFFORT if running else Disturbance.USES_DISKS)
    assert not writes(plans, Knob.IO_MAX)


def test_a_service_that_is_slow_on_its_own_disk_takes_nothing_from_best_effort() -> None:
    node = DiskWaitNode(1)
    wants, node.wants = node.wants, [0.0, 0.0]
    loop = disks(node)
    loop.run(LEARNING_S)
    node.wants, node.scale, node.inflicts = wants, 3.0, False
    plans = loop.run(60)
    assert not writes(plans, Knob.IO_MAX)
    assert plans[-1].demands[-1].state is ChannelState.NOT_BE
