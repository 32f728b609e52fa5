# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a squeeze begins and ends, on plants of up to four times the usual gain."""

from dataclasses import replace

import pytest

from controller.core.model import CgroupId
from controller.core.settings import LawSettings
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import (
    LAW,
    SECOND_NS,
    TICKS_PER_S,
    ClosedLoop,
    make_settings,
    make_spec,
)

SHIPPED = make_spec(filter_ns=4 * SECOND_NS)
QUIET = 1e3


def make_loop(plant: Plant, seed: int = 1, law: LawSettings = LAW) -> ClosedLoop[SimulatedNode]:
    return ClosedLoop(SimulatedNode(seed, plant), make_settings(SHIPPED, law=law))


def test_the_first_squeeze_does_not_wait_for_the_low_pass() -> None:
    """With it the first quota is written 1.4 s after the onset of harm or later."""
    loop = make_loop(Plant(p99_ns=QUIET))
    loop.run(20)
    loop.node.plant = replace(loop.node.plant, p99_ns=5e6)
    plans = loop.run(10)
    first = next(i for i, plan in enumerate(plans) if plan.actions)
    assert first / TICKS_PER_S <= 0.8


def seconds_to_release(plant: Plant, squeezed_s: float, law: LawSettings = LAW) -> float:
    """Return the time from the end of the harm to 90 % of the work that best-effort wants."""
    loop = make_loop(plant, law=law)
    loop.run(squeezed_s)
    node = loop.node
    assert node.p99_ns < 4e6
    node.plant = replace(plant, p99_ns=QUIET)
    for tick in range(120 * TICKS_PER_S):
        before = node.best_effort_cpu_s
        loop.step()
        if (node.best_effort_cpu_s - before) * TICKS_PER_S >= 0.9 * FREE_CPUS:
            return tick / TICKS_PER_S
    raise AssertionError("not released")


# The batch work of the simulated node wants 2 CPUs, of which the service needs 0.225.
FREE_CPUS = 1.775


@pytest.mark.parametrize("squeezed_s", [10, 60])
@pytest.mark.parametrize("slope", [0.5, 1.0, 2.0, 4.0])
def test_the_work_is_back_within_ten_seconds_after_the_harm(slope: float, squeezed_s: int) -> None:
    plant = Plant(slope=slope, noise=0.2)
    assert seconds_to_release(plant, squeezed_s) <= 10


def test_without_its_part_of_the_law_a_release_takes_most_of_a_minute() -> None:
    law = replace(LAW, fast_release=False)
    assert seconds_to_release(Plant(noise=0.2), 10, law) > 25


class CliffNode(SimulatedNode):
    """The service suffers from 0.5 CPU of best-effort work on and not at all below."""

    def _wait(self, cgroup: CgroupId, p99_ns: float, uses: list[float], dt_ns: int) -> None:
        noise = p99_ns / self.p99_ns
        self.p99_ns = 20e6 if sum(uses) > 0.5 else 0.3e6
        super()._wait(cgroup, self.p99_ns * noise, uses, dt_ns)


def fifth_minute_on_a_cliff(law: LawSettings) -> tuple[float, int]:
    """Return the seconds above the sweet point and the number of writes in the fifth minute."""
    node = CliffNode(1, Plant(noise=0.2))
    loop = ClosedLoop(node, make_settings(SHIPPED, law=law))
    loop.run(240)
    ticks = writes = 0
    for _ in range(60 * TICKS_PER_S):
        writes += len(loop.step().actions)
        ticks += node.p99_ns > 2e6
    return ticks / TICKS_PER_S, writes


def test_a_release_over_a_cliff_is_repeated_less_and_less_often() -> None:
    suffered_s, writes = fifth_minute_on_a_cliff(LAW)
    assert suffered_s <= 0.5
    assert writes <= 6
    assert fifth_minute_on_a_cliff(replace(LAW, fast_release=False))[1] > 50
