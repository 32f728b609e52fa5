# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A figure that moves without the service's work is wrong; one that moves with it is not."""

from dataclasses import replace
import math
from typing import Any, cast

import pytest

from controller.core.decision import IndicatorStatus
from controller.core.indicators.counters import SampleDiff
from controller.core.indicators.own_figure import FigureCheck, OwnFigures, Pace
from controller.core.model import (
    CgroupId,
    IndicatorName,
    Pause,
    QosClass,
    ServiceReading,
    Snapshot,
    Workload,
    WorkloadSample,
)
from controller.core.units import MIB, NS_PER_SEC
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import make_settings, make_spec

TICK_S = 0.2
USUAL = Pace(math.log(1.5), math.log(3.0))


class Source:
    """A check that takes a figure and a pace in every tick."""

    def __init__(self) -> None:
        self.check = FigureCheck()
        self._time_ns = 0

    def run(
        self, seconds: float, value: float, pace: Pace = USUAL, *, others_do_more: bool = False
    ) -> bool:
        """Return whether the figure is wrong at the end."""
        for _ in range(round(seconds / TICK_S)):
            self._time_ns += round(TICK_S * NS_PER_SEC)
            self.check.update(value, pace, self._time_ns, TICK_S, others_do_more=others_do_more)
        return self.check.wrong


@pytest.fixture
def source() -> Source:
    source = Source()
    assert not source.run(60, 4e6)
    return source


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_figure_that_jumps_alone_is_wrong_at_once_and_for_as_long(
    source: Source, factor: float
) -> None:
    assert source.run(TICK_S, factor * 4e6)
    assert source.run(300, factor * 4e6)
    assert not source.run(TICK_S, 5e6)


def test_a_figure_moves_by_a_factor_of_three_by_itself(source: Source) -> None:
    assert not source.run(5, 12e6)
    assert not source.run(5, 1.4e6)


@pytest.mark.parametrize(
    "pace",
    [
        pytest.param(USUAL._replace(slowdown=USUAL.slowdown + 0.3), id="it works more slowly"),
        pytest.param(USUAL._replace(load=USUAL.load + 0.3), id="it has more to do"),
    ],
)
def test_a_figure_that_moves_with_the_work_is_right(source: Source, pace: Pace) -> None:
    assert not source.run(TICK_S, 4e6, pace)
    assert not source.run(20, 40e6, pace)


def test_a_figure_that_rises_as_best_effort_does_more_is_right(source: Source) -> None:
    assert not source.run(300, 40e6, others_do_more=True)
    assert not source.run(500, 40e6), "they may have become usual"
    assert not source.run(TICK_S, 4e6), "it was usual before"
    assert not source.run(300, 4e6)


def test_a_smaller_figure_is_wrong_also_after_one_that_was_believed_for_long(
    source: Source,
) -> None:
    assert not source.run(700, 40e6, others_do_more=True)
    assert source.run(300, 0.4e6)
    assert not source.run(1, 4e6)


@pytest.mark.parametrize("seconds", [5, 9])
def test_best_effort_may_be_seen_to_do_more_seconds_later(source: Source, seconds: float) -> None:
    assert source.run(seconds, 40e6)
    assert not source.run(1, 40e6, others_do_more=True)
    assert not source.run(60, 40e6)


def test_best_effort_that_does_more_much_later_explains_nothing(source: Source) -> None:
    assert source.run(11, 40e6)
    assert source.run(60, 40e6, others_do_more=True)


def test_best_effort_that_does_more_does_not_explain_a_smaller_figure(source: Source) -> None:
    assert source.run(5, 0.4e6, others_do_more=True)
    assert not source.run(1, 4e6)
    assert not source.run(5, 40e6, others_do_more=True)
    assert source.run(TICK_S, 0.4e6), "nor one that was larger before"


def test_nothing_is_judged_before_the_usual_figure_is_known() -> None:
    source = Source()
    source.run(15, 4e6)
    assert not source.run(1, 40e6)


def test_a_figure_that_stays_is_taken_as_it_is_in_the_end(source: Source) -> None:
    assert source.run(599, 40e6)
    assert not source.run(3, 40e6)
    assert source.run(60, 40e6) is False
    assert source.run(TICK_S, 4e6), "40 ms are usual now"


SERVICE, JOB = CgroupId("cpu", 1), CgroupId("cpu", 2)
# What the job does in a second: CPU time in ns, bytes to the network, bytes to disks.
STEADY = {"oncpu_ns": NS_PER_SEC // 2, "tx_bytes": 2 * MIB, "rx_bytes": 0, "io_bytes": 2 * MIB}


def status_of(jump: float, job_does: dict[str, int], *, paused: bool = False) -> IndicatorStatus:
    """Return the status of a figure that jumps by *jump*, and the job begins to do *job_does*."""
    workloads = [
        Workload("web", SERVICE, "/web", QosClass.LS, "web", "default"),
        Workload("job", JOB, "/job", QosClass.BE, "job", ""),
    ]
    profiles = make_settings().profiles
    running = WorkloadIndex(workloads, profiles)
    figures, samples = OwnFigures(), SampleDiff()
    does = dict.fromkeys(STEADY, 0)
    for second in range(65):
        jumped = second >= 60
        if jumped and paused:
            running = WorkloadIndex(workloads, profiles, Pause(everything=True))
        rates = STEADY | job_does if jumped else STEADY
        does = {name: value + rates[name] for name, value in does.items()}
        web = WorkloadSample(SERVICE, oncpu_ns=second * NS_PER_SEC // 2, wait_inflicted_ns=0)
        samples.update([web, WorkloadSample(JOB, **cast("dict[str, Any]", does))])
        value = 5e6 * (jump if jumped else 1.0)
        snapshot = Snapshot(
            time_ns=second * NS_PER_SEC,
            age_ns=0,
            workloads=(),
            services=(ServiceReading("web", value, 0),),
        )
        figures.update(snapshot, running, samples, NS_PER_SEC if second else 0)
    found = figures.indicator("web", replace(make_spec(), name=IndicatorName.SERVICE), 0.5)
    assert found is not None
    return found.status


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {"oncpu_ns": NS_PER_SEC},
        {"tx_bytes": 20 * MIB},
        {"rx_bytes": 9 * MIB},
        {"io_bytes": 5 * MIB},
    ],
    ids=["CPU time", "sends", "receives", "disk"],
)
def test_best_effort_that_begins_to_do_more_explains_a_larger_figure(
    more: dict[str, int], paused: bool
) -> None:
    assert status_of(30.0, more, paused=paused) is IndicatorStatus.FRESH
    assert status_of(1 / 30, more, paused=paused) is IndicatorStatus.IMPLAUSIBLE


def test_best_effort_that_does_as_before_explains_nothing() -> None:
    slightly_more = {"tx_bytes": 2 * MIB + MIB // 2}
    assert status_of(30.0, slightly_more) is IndicatorStatus.IMPLAUSIBLE


def test_a_pause_explains_a_larger_figure_at_the_same_work() -> None:
    """Without its tiers a link harms more."""
    assert status_of(30.0, {}, paused=True) is IndicatorStatus.FRESH
    assert status_of(30.0, {}) is IndicatorStatus.IMPLAUSIBLE
    assert status_of(1 / 30, {}, paused=True) is IndicatorStatus.IMPLAUSIBLE
