# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort workloads that requested CPUs share a squeeze in these proportions."""

import pytest

from controller.core.knob_values import parse_quota
from controller.core.model import Knob
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import TICKS_PER_S, ClosedLoop, make_settings

REQUESTS = (1.0, 2.0, 4.0)


# What each uses without limits: on an idle machine, and beside as many others as the kernel allows.
@pytest.mark.parametrize("wants", [REQUESTS, (2.0, 2.0, 2.0)])
def test_in_a_squeeze_each_gets_its_part(wants: tuple[float, ...]) -> None:
    node = SimulatedNode(3, wants=wants, plant=Plant(cpus=8))
    node.best_effort = [
        each._replace(limit_cpus=cpus)
        for each, cpus in zip(node.best_effort, REQUESTS, strict=True)
    ]
    loop = ClosedLoop(node, make_settings(cpus=8))
    loop.run(60)
    granted = [0.0, 0.0, 0.0]
    for _ in range(60 * TICKS_PER_S):
        loop.step()
        for number, job in enumerate(node.best_effort):
            quota = parse_quota(node.value(job, Knob.CPU_QUOTA))
            granted[number] += (quota.quota_us or 0) / quota.period_us / 60 / TICKS_PER_S
    assert 0.05 < sum(granted) < 1.5
    parts = [cpus / request for cpus, request in zip(granted, REQUESTS, strict=True)]
    assert parts == pytest.approx([parts[0]] * 3, rel=0.05)
