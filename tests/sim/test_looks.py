# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Ticks that are left out change no decision beyond its time."""

from itertools import pairwise
import statistics

import pytest

from controller.core.decision import Plan
from controller.core.knob_values import parse_quota
from controller.core.model import Knob
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import SECOND_NS, ClosedLoop, make_settings, make_spec
from tests.support.loops.looking_loop import LookingLoop, WokenLoop

# Times in which the jobs sleep, work and sleep, in seconds.
SLEEP_S, WORK_S = 20, 60


def changes(loop: ClosedLoop[SimulatedNode]) -> list[tuple[float, bool]]:
    """Run *loop*; return when a squeeze began or ended, in s, and whether it began."""
    applied = [(0.0, 0.0)]

    def note(plan: Plan) -> None:
        applied.append((loop.now_ns / 1e9, plan.demands[0].applied))

    node, wants = loop.node, loop.node.wants
    for seconds, working in ((SLEEP_S, False), (WORK_S, True), (2 * SLEEP_S, False)):
        node.wants = wants if working else [0.0 for _ in wants]
        loop.run(seconds, note)
    return [
        (now_s, demand > 0)
        for (_, before), (now_s, demand) in pairwise(applied)
        if (before > 0) is not (demand > 0)
    ]


@pytest.mark.parametrize("p99_ns", [5e6, 1.5e6, 0.3e6])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_service_is_protected_as_with_all_ticks(p99_ns: float, seed: int) -> None:
    """At the lowest latency the harm vanishes with the first squeeze, and comes back after it."""
    plant = Plant(p99_ns=p99_ns)
    looking = LookingLoop(SimulatedNode(seed, plant), make_settings())
    ticking = ClosedLoop(SimulatedNode(seed, plant), make_settings())
    found, wanted = changes(looking), changes(ticking)
    assert [began for _, began in found] == [began for _, began in wanted]
    assert found[0][0] <= wanted[0][0] + 0.2
    assert all(
        abs(now_s - then_s) <= 8 for (now_s, _), (then_s, _) in zip(found, wanted, strict=True)
    )
    # The jobs have about the same work.
    assert looking.node.best_effort_cpu_s == pytest.approx(ticking.node.best_effort_cpu_s, rel=0.1)
    assert looking.found[None] > 75


@pytest.mark.parametrize("quiet_p99_ns", [0.1e6, 1.0e6, 1.8e6])
def test_a_service_without_neighbours_is_never_squeezed_for(quiet_p99_ns: float) -> None:
    """The nearer it is to its sweet point of 2 ms, the fewer ticks are left out."""
    node = SimulatedNode(1, Plant(quiet_p99_ns=quiet_p99_ns), wants=(0.0, 0.0))
    loop = LookingLoop(node, make_settings())
    assert not any(demand.applied for plan in loop.run(60) for demand in plan.demands)
    share = loop.found[None] / loop.found.total()
    assert (share > 0.7) is (quiet_p99_ns < 1.2e6)


def onset_to_write_ms(
    p99_ns: float, phase_ms: int, *, wakes: bool, quiet_p99_ns: float = 60e3
) -> float:
    """Let the jobs begin to work at a time, while a tick is due every 540 ms."""
    plant = Plant(p99_ns=p99_ns, quiet_p99_ns=quiet_p99_ns)
    node = SimulatedNode(1, plant, request_rate=1000.0)
    wants, node.wants = node.wants, [0.0 for _ in node.wants]
    settings = make_settings(make_spec(filter_ns=4 * SECOND_NS))
    loop = WokenLoop(node, settings, wakes=wakes)
    onset_ns = 4 * SECOND_NS + phase_ms * 1_000_000
    assert loop.run(onset_ns) is None
    node.wants = wants
    written_ns = loop.run(onset_ns + 3 * SECOND_NS)
    assert written_ns is not None
    return (written_ns - onset_ns) / 1e6


@pytest.mark.parametrize("p99_ns", [1.5e6, 0.6e6])
def test_the_first_squeeze_comes_sooner_when_the_kernel_tells(p99_ns: float) -> None:
    phases_ms = range(0, 540, 90)
    woken = [onset_to_write_ms(p99_ns, phase_ms, wakes=True) for phase_ms in phases_ms]
    looking = [onset_to_write_ms(p99_ns, phase_ms, wakes=False) for phase_ms in phases_ms]
    assert max(woken) <= 400
    assert statistics.median(woken) <= 280
    assert sum(woken) < 0.65 * sum(looking)


def test_a_job_that_begins_to_run_is_limited_before_its_average_use_is_known() -> None:
    """It used CPUs for a tenth of the 2 s of the average when the first quota is written."""
    node = SimulatedNode(1, Plant(p99_ns=0.6e6), request_rate=1000.0)
    wants, node.wants = node.wants, [0.0 for _ in node.wants]
    loop = WokenLoop(node, make_settings(make_spec(filter_ns=4 * SECOND_NS)), wakes=True)
    assert loop.run(4 * SECOND_NS) is None
    node.wants = wants
    written_ns = loop.run(5 * SECOND_NS)
    assert written_ns is not None
    assert written_ns < 4.3 * SECOND_NS
    limits = [parse_quota(node.value(each, Knob.CPU_QUOTA)).cpus for each in node.best_effort]
    # By the average alone one has less than a tenth of what it wants, and the other no limit.
    assert all(
        cpus is not None and want / 8 < cpus < want
        for cpus, want in zip(limits, wants, strict=True)
    )


def test_a_service_that_is_always_near_its_sweet_point_waits_no_longer() -> None:
    phases_ms = range(0, 540, 90)
    assert all(
        onset_to_write_ms(1.5e6, phase_ms, wakes=True, quiet_p99_ns=1.5e6) <= 300
        for phase_ms in phases_ms
    )
