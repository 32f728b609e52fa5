# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU use of the machine, waits without a culprit, and a time without data."""

import pytest

from controller.core.indicators.measurement import BUCKETS
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.model import CgroupId, QosClass, Snapshot, Workload, WorkloadSample
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import SECOND_NS, TICK_NS, make_settings, make_spec

WEB, BATCH = CgroupId("cpu", 1), CgroupId("cpu", 2)
INDEX = WorkloadIndex(
    [
        Workload("web", WEB, "/web", QosClass.LS, "web", "default"),
        Workload("batch", BATCH, "/batch", QosClass.BE, "batch", "default"),
    ],
    make_settings().profiles,
)


def run(
    tracker: IndicatorTracker, first: int, last: int, measured: bool = True, unknown_cpus: int = 0
) -> None:
    """Feed ticks of a node without blame: 1.9 CPUs of system work beside a little batch work."""
    for tick in range(first, last):
        time_ns = tick * TICK_NS
        snapshot = Snapshot(
            time_ns=time_ns,
            age_ns=0,
            workloads=(
                WorkloadSample(WEB, oncpu_ns=time_ns // 20, wait_inflicted_ns=time_ns // 2),
                WorkloadSample(BATCH, oncpu_ns=time_ns // 20),
            ),
            system_oncpu_ns=time_ns * 19 // 10 if measured else None,
            unknown_oncpu_ns=time_ns * unknown_cpus,
        )
        dt_ns = TICK_NS if tick else 0
        tracker.update(snapshot, INDEX, dt_ns, oldest_ns=SECOND_NS, longest_gap_ns=5 * TICK_NS)


def test_a_wait_without_blame_is_not_put_on_best_effort_beside_system_work() -> None:
    tracker = IndicatorTracker()
    run(tracker, 0, 100)
    assert tracker.outside_cpus == pytest.approx(1.9, rel=0.01)
    assert tracker.blame.share("web") == pytest.approx(0.05 / 1.95, rel=0.05)


def test_system_work_that_is_not_measured_for_a_moment_is_not_taken_as_none() -> None:
    tracker = IndicatorTracker()
    run(tracker, 0, 100)
    run(tracker, 100, 110, measured=False)
    assert tracker.system_cpus == pytest.approx(1.9, rel=0.01)


def test_unknown_work_takes_cpu_and_excuses_no_best_effort_work() -> None:
    tracker = IndicatorTracker()
    run(tracker, 0, 100, unknown_cpus=1)
    assert tracker.system_cpus == pytest.approx(2.9, rel=0.01)
    assert tracker.outside_cpus == pytest.approx(1.9, rel=0.01)
    assert tracker.blame.share("web") == pytest.approx(0.05 / 1.95, rel=0.05)


def test_no_window_reaches_back_over_a_time_without_data() -> None:
    tracker = IndicatorTracker()
    for tick in range(103):
        alive = not 10 <= tick < 100
        counts = (100 * tick,) + (0,) * (BUCKETS - 1)
        sample = WorkloadSample(WEB, oncpu_ns=0, waits=100 * tick, runq_histogram=counts)
        snapshot = Snapshot(
            time_ns=tick * TICK_NS,
            age_ns=0 if alive else None,
            workloads=(sample if alive else WorkloadSample(WEB),),
        )
        dt_ns = TICK_NS if tick else 0
        tracker.update(snapshot, INDEX, dt_ns, 2 * TICK_NS, longest_gap_ns=5 * TICK_NS)
        reading = tracker.reading(WEB, make_spec())
        if tick > 100:
            assert reading is not None
            assert (reading.span_ns, reading.samples) == (
                (tick - 100) * TICK_NS,
                (tick - 100) * 100,
            )
