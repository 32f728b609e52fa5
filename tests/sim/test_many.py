# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A full squeeze of one to hundreds of best-effort workloads."""

from dataclasses import replace

import pytest

from controller.core.knob_values import parse_quota
from controller.core.model import Knob
from controller.core.settings import LawSettings
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.closed_loop import LAW, ClosedLoop, make_settings

CPUS = 16


def granted(workloads: int, law: LawSettings = LAW) -> float:
    """Return the CPUs that the quotas of all workloads allow together at full squeeze."""
    law = replace(law, verify_squeeze=False)
    plant = Plant(cpus=CPUS, p99_at_cpus=0.05, noise=0.0)
    node = SimulatedNode(1, plant, wants=[CPUS / workloads] * workloads)
    loop = ClosedLoop(node, make_settings(cpus=CPUS, law=law))
    assert loop.run(15)[-1].demands[0].applied == pytest.approx(1.0)
    quotas = [parse_quota(node.value(each, Knob.CPU_QUOTA)) for each in node.best_effort]
    return sum(quota.cpus or CPUS for quota in quotas)


@pytest.mark.parametrize("workloads", [1, 10, 100, 320])
def test_a_full_squeeze_leaves_two_per_cent_of_the_machine(workloads: int) -> None:
    assert granted(workloads) <= 0.02 * CPUS * 1.01


def test_without_its_part_of_the_law_it_leaves_a_quarter() -> None:
    assert granted(100, replace(LAW, low_floors=False)) > 0.2 * CPUS
