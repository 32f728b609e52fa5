# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Loops of a service without counter changes are quiescent, and resume without a delay."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from controller.core.decision import ChannelState, Indicator, IndicatorStatus, LoopReport, Plan
from controller.core.indicators.measurement import BUCKETS
from controller.core.loop.pid import IndicatorLoop, PidLoop
from controller.core.model import (
    Blame,
    CgroupId,
    Channel,
    IndicatorName,
    Knob,
    KnobReading,
    KnobValue,
    Mode,
    QosClass,
    Snapshot,
    Workload,
    WorkloadSample,
)
from controller.core.planner import Planner
from controller.core.settings import Gains, Settings
from controller.demo.simulated_knobs import target_of
from tests.support.loops.closed_loop import TICK_NS, TICKS_PER_S, make_settings, make_spec

SHORT, LONG = 20, 62  # the histogram's buckets of waits below and above the sweet point
BUSY, SLEEPY, HOG = (CgroupId("cpu", number) for number in range(3))
WORKLOADS = [
    Workload("busy", BUSY, "/busy", QosClass.LS, "busy", "default"),
    Workload("sleepy", SLEEPY, "/sleepy", QosClass.LS, "sleepy", "default"),
    Workload("hog", HOG, "/hog", QosClass.BE, "hog", "default"),
]
FREE = KnobReading(target_of(WORKLOADS[2]), Knob.CPU_QUOTA, KnobValue("max 100000 0"))
# What the sleepy service does, and for how many seconds.
PHASES = [("works", 30), ("suffers", 20), ("sleeps", 120), ("suffers", 20), ("sleeps", 60)]


def snapshots() -> Iterator[tuple[str, Snapshot]]:
    """Two services beside best-effort work; only the sleepy service ever waits for long."""
    counts = {BUSY: [0] * BUCKETS, SLEEPY: [0] * BUCKETS}
    oncpu = dict.fromkeys([BUSY, SLEEPY, HOG], 0)
    inflicted = dict.fromkeys(counts, 0)
    now_ns = 0
    for phase, seconds in PHASES:
        for _ in range(seconds * TICKS_PER_S):
            for cgroup in (BUSY, SLEEPY, HOG) if phase != "sleeps" else (BUSY, HOG):
                oncpu[cgroup] += TICK_NS // 5
            counts[BUSY][SHORT] += 20
            if phase != "sleeps":
                counts[SLEEPY][LONG if phase == "suffers" else SHORT] += 20
                inflicted[SLEEPY] += TICK_NS // 2 if phase == "suffers" else 0
            services = [
                WorkloadSample(
                    cgroup,
                    oncpu_ns=oncpu[cgroup],
                    waits=sum(histogram),
                    runq_histogram=tuple(histogram),
                    wait_inflicted_ns=inflicted[cgroup],
                )
                for cgroup, histogram in counts.items()
            ]
            yield (
                phase,
                Snapshot(
                    time_ns=now_ns,
                    age_ns=0,
                    workloads=(*services, WorkloadSample(HOG, oncpu_ns=oncpu[HOG])),
                    blame=(Blame(SLEEPY, HOG, True, inflicted[SLEEPY]),),
                    knobs=(FREE,),
                ),
            )
            now_ns += TICK_NS


def plans(settings: Settings) -> list[tuple[str, Plan]]:
    planner = Planner(settings, WORKLOADS)
    return [(phase, planner.step(snapshot, ())) for phase, snapshot in snapshots()]


def sleepy(plan: Plan) -> LoopReport:
    return next(loop for loop in plan.loops if loop.service == "sleepy")


def quiescent_ticks(plans: list[tuple[str, Plan]]) -> int:
    """Return the number of ticks in which the sleepy service was not evaluated."""
    reports = [sleepy(plan) for _, plan in plans]
    return sum(before is now for before, now in pairwise(reports))


def test_quiescence_does_not_change_the_plans() -> None:
    """Compared with a service whose own figure may change at any time, so it is never quiescent."""
    settings = make_settings(mode=Mode.OBSERVE)  # as if everything had been applied
    profile = settings.profiles["default"]
    own = replace(profile.indicators[0], name=IndicatorName.SERVICE, channel=Channel.CPU)
    with_own = replace(profile, indicators=(*profile.indicators, own), channels=(Channel.CPU,))
    quiescent = plans(settings)
    active = plans(replace(settings, profiles={"default": with_own}))
    squeezed = 0
    for (phase, plan), (_, other) in zip(quiescent, active, strict=True):
        demand, otherwise = plan.demands[0], other.demands[0]
        assert demand.applied == pytest.approx(otherwise.applied, abs=0.005), phase
        assert demand.state is otherwise.state
        assert sleepy(plan).status is sleepy(other).status
        squeezed += demand.applied > 0.5
    assert squeezed > 20 * TICKS_PER_S
    assert quiescent_ticks(quiescent) > 100 * TICKS_PER_S
    assert quiescent_ticks(active) == 0


def test_converge_is_the_limit_of_many_steps() -> None:
    gains = Gains(kp=0.3, ti_s=4.0, td_s=0.0)
    loop, resumed = PidLoop(gains, 0.0), PidLoop(gains, 0.9)
    resumed.update(-0.9, 0.2)
    for _ in range(1000):
        loop.update(-0.9, 0.2)
        loop.track(0.4, 0.2)
    resumed.converge(0.4)
    assert resumed.demand == pytest.approx(loop.demand, abs=0.02)
    for error in (-0.9, 0.5, 1.0):
        assert resumed.update(error, 0.2) == pytest.approx(loop.update(error, 0.2), abs=0.02)


def test_stale_guard_holds_for_its_ticks() -> None:
    loop = IndicatorLoop(make_spec(), 0.0)
    states = []
    for status in ("fresh", "stale", "stale", "stale", "fresh"):
        indicator = Indicator(
            service="web",
            name=IndicatorName.RUNQ_P99,
            value=None,
            samples=0,
            status=IndicatorStatus(status),
        )
        loop.update(indicator, 0.2, False, 1.0, lambda spec, least: False, stale_ticks=2)
        states.append(loop.state)
    assert states == [
        ChannelState.FREE,
        ChannelState.HOLD,
        ChannelState.HOLD,
        ChannelState.SAFE,
        ChannelState.FREE,
    ]
