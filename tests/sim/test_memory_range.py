# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""memory.high over the range of the demand: from the use of best-effort work down to its floor."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from controller.core.decision import Plan
from controller.core.knob_values import parse_amount
from controller.core.model import Channel, Knob
from controller.core.settings import HostFacts, MemoryGuard
from tests.sim.plants import MemoryNode
from tests.support.loops.closed_loop import ClosedLoop
from tests.support.loops.resource_loop import demands, resource_settings, resource_spec, writes

GIB = 1 << 30


class PartOfHost(MemoryNode):
    """The same node as a part of a host with 512 GiB, below a limit of its 8 GiB."""

    @property
    def host(self) -> HostFacts:
        """The host, which knows nothing of the limit."""
        return HostFacts(cpus=4, memory_bytes=512 * GIB)


def plans_of(node: MemoryNode, guard: MemoryGuard | None, seconds: float) -> Sequence[Plan]:
    settings = resource_settings(node, [resource_spec(MemoryNode)])
    return ClosedLoop(node, replace(settings, memory=guard)).run(seconds)


@pytest.mark.parametrize("kind", [MemoryNode, PartOfHost])
def test_the_first_demand_limits_work_to_less_than_it_used(kind: type[MemoryNode]) -> None:
    node = kind(1)
    plans = plans_of(node, MemoryGuard(capacity_bytes=node.memory), 60)
    largest = {
        round(demand, 2): max(parse_amount(each.value) for each in written)
        for demand, plan in zip(demands(plans, Channel.MEMORY), plans, strict=True)
        if demand > 0 and (written := writes([plan], Knob.MEMORY_HIGH))
    }
    assert min(largest) < 0.1
    assert max(largest.values()) < node.wants[0]
    assert max(largest) < 0.6, "less than the whole range is enough"
