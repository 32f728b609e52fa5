# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The applied demand: how fast it moves, and the bounds of a rise."""

from dataclasses import replace

import pytest

from controller.core.decision import ChannelState
from controller.core.loop.channel_loops import ChannelLoops
from controller.core.loop.channel_pace import PacedLimiter
from controller.core.loop.service_loops import ServiceLoops
from controller.core.model import CgroupId, Channel, Knob
from controller.core.planner import Planner
from controller.core.settings import KnobLimits
from controller.core.tuning import DEFAULT_LIMITS
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import (
    LAW,
    SECOND_NS,
    TICK_NS,
    TICKS_PER_S,
    ClosedLoop,
    make_settings,
    make_spec,
)

SHIPPED = make_spec(filter_ns=4 * SECOND_NS)
AT_THE_FLOOR = Plant(p99_at_cpus=0.005, noise=0.0)


def ticks_at_the_stop(fast_rise: bool) -> int:
    """Return for how long the demand stays at 1 after the service came just below its point."""
    law = replace(LAW, fast_rise=fast_rise, verify_squeeze=False)
    node = SimulatedNode(4, AT_THE_FLOOR)
    loop = ClosedLoop(node, make_settings(SHIPPED, law=law))
    assert loop.run(60)[-1].demands[0].applied == 1.0
    below = 2e6 * 2**-0.24
    node.plant = replace(AT_THE_FLOOR, p99_ns=AT_THE_FLOOR.p99_ns * below / node.p99_ns)
    applied = [plan.demands[0].applied for plan in loop.run(60)]
    return next(index for index, each in enumerate(applied) if each < 0.99)


def test_a_demand_at_its_stop_does_not_wind_the_loops_up() -> None:
    assert ticks_at_the_stop(fast_rise=True) == ticks_at_the_stop(fast_rise=False)


class DeafNode(SimulatedNode):
    """The service suffers by a deviation of 0.4, whatever best-effort work uses."""

    def _wait(self, cgroup: CgroupId, p99_ns: float, uses: list[float], dt_ns: int) -> None:
        self.p99_ns = 2e6 * 2**0.4
        super()._wait(cgroup, self.p99_ns, uses, dt_ns)


def test_the_demand_does_not_rise_without_data() -> None:
    node = DeafNode(1, Plant(noise=0.0))
    settings = make_settings(SHIPPED)
    planner = Planner(settings, node.workloads)
    applied: list[float] = []
    held: list[float] = []
    # The probe's data are old from the seventh second on, when the demand rises by itself.
    for tick in range(8 * TICKS_PER_S):
        snapshot = node.snapshot(tick * TICK_NS)
        if tick >= 7 * TICKS_PER_S:
            snapshot = replace(snapshot, age_ns=SECOND_NS)
        demand = planner.step(snapshot, ()).demands[0]
        (held if demand.state is ChannelState.HOLD else applied).append(demand.applied)
    assert applied[-1] > applied[-2] + 0.01
    assert len(held) == TICKS_PER_S
    assert max(held) == applied[-1] < 0.9


def test_the_demand_rises_fast_and_falls_in_spaced_steps() -> None:
    limits = KnobLimits(
        floor=0.05, squeeze_per_s=2.0, release_step=0.1, release_spacing_ns=SECOND_NS
    )
    law = replace(LAW, fast_rise=False, fast_release=False)
    limiter = PacedLimiter(ChannelLoops(Channel.CPU, replace(make_settings(), law=law)))

    def applied(wanted: float, now_ns: int) -> float:
        demand = replace(limiter.loops.demand, wanted=wanted)
        limiter.move(demand, limits, now_ns, 0.2)
        return limiter.applied

    assert applied(1.0, 0) == pytest.approx(0.4)
    assert applied(0.5, 1) == 0.5
    assert applied(0.0, SECOND_NS) == pytest.approx(0.4)
    assert applied(0.0, SECOND_NS + 1) == pytest.approx(0.4)
    assert applied(0.0, 2 * SECOND_NS) == pytest.approx(0.3)
    assert applied(0.35, 2 * SECOND_NS + 1) == 0.35


def test_a_squeeze_begins_with_a_usual_step_also_in_a_tick_that_comes_early() -> None:
    limiter = PacedLimiter(ChannelLoops(Channel.CPU, replace(make_settings(), law=LAW)))
    demand = replace(limiter.loops.demand, wanted=1.0)
    early_s = TICK_NS / 8e9
    limiter.move(demand, DEFAULT_LIMITS[Knob.CPU_QUOTA], TICK_NS, early_s)
    assert limiter.applied == pytest.approx(0.4)
    limiter.move(demand, DEFAULT_LIMITS[Knob.CPU_QUOTA], 2 * TICK_NS, early_s)
    assert limiter.applied == pytest.approx(0.45)


@pytest.mark.parametrize("charge", [0.0, 0.5])
def test_another_cause_ends_a_squeeze_at_once_unless_another_service_needs_it(
    charge: float,
) -> None:
    services = {"web": ServiceLoops("web", Channel.CPU, charge=charge)}
    loops = ChannelLoops(Channel.CPU, make_settings(), _services=services)
    limiter = PacedLimiter(loops, applied=0.6)
    other = replace(loops.demand, state=ChannelState.NOT_BE, service="db")
    limiter.let_go(other)
    assert limiter.applied == (0.6 if charge else 0.0)
