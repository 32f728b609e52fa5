# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of run-queue waits, and the indicators of a service computed from them."""

from functools import partial

from controller.core.decision import Indicator, IndicatorStatus
from controller.core.indicators.measurement import (
    BUCKETS,
    STALE,
    WindowReading,
    measure_waits,
    service_indicator,
)
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.indicators.windows import Delta, DeltaWindow, WaitWindow
from controller.core.model import CgroupId, QosClass, Snapshot, Workload, WorkloadSample
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import SECOND_NS, TICK_NS, make_settings, make_spec

WEB = CgroupId("cpu", 1)
FAST, SLOW = 20, 60


def sample(
    waits: int = 0, slow: int = 0, oncpu_ns: int = 0, inflicted_ns: int = 0
) -> WorkloadSample:
    counts = [0] * BUCKETS
    counts[FAST], counts[SLOW] = waits - slow, slow
    return WorkloadSample(
        WEB,
        oncpu_ns=oncpu_ns,
        wait_inflicted_ns=inflicted_ns,
        waits=waits,
        runq_histogram=tuple(counts),
    )


def filled(ticks: int, waits_per_tick: int = 10) -> WaitWindow:
    window = WaitWindow(SECOND_NS)
    for tick in range(ticks):
        window.push(
            tick * TICK_NS,
            sample(waits=tick * waits_per_tick, oncpu_ns=tick * TICK_NS // 4),
        )
    return window


def test_one_sample_gives_no_reading() -> None:
    assert filled(1).read(SECOND_NS, 1) is None


def test_a_reading_covers_the_window_and_no_more() -> None:
    reading = filled(50).read(SECOND_NS, 20)
    assert reading is not None
    assert reading.span_ns == SECOND_NS
    assert reading.samples == 50
    assert reading.oncpu_ratio == 0.25
    assert reading.inflicted_ratio == 0.0
    assert reading.throttled_ns is None


def has_waits(least: int, reading: WindowReading) -> bool:
    return reading.samples >= least


def test_the_last_ticks_are_read_one_by_one() -> None:
    for least in (7, 8):
        shows = partial(has_waits, least)
        readings = filled(5, waits_per_tick=7).last_ticks(3, shows)
        assert [(each.span_ns, each.samples) for each in readings] == [(TICK_NS, 7)] * 3
    assert len(filled(3).last_ticks(3, bool)) == 2
    assert WaitWindow(SECOND_NS).last_ticks(3, bool) == []


def test_short_ticks_that_show_nothing_are_no_ticks_of_their_own() -> None:
    window = WaitWindow(SECOND_NS)
    # A burst of waits, 150 ms with one wait or none in short ticks, and then a burst again.
    counts = ((0, 0), (25, 9), (50, 9), (75, 10), (100, 10), (175, 10), (200, 18))
    for time_ms, waits in counts:
        window.push(time_ms * 10**6, sample(waits=waits))
    readings = window.last_ticks(3, partial(has_waits, 6))
    found = [(each.span_ns // 10**6, each.samples) for each in readings]
    assert found == [(25, 8), (100, 0), (75, 10)]


def test_too_few_waits_stretch_the_window_up_to_four_times() -> None:
    reading = filled(50, waits_per_tick=2).read(SECOND_NS, 30)
    assert reading is not None
    assert reading.samples == 30
    assert reading.span_ns == 3 * SECOND_NS
    reading = filled(50, waits_per_tick=1).read(SECOND_NS, 1000)
    assert reading is not None
    assert reading.span_ns == 4 * SECOND_NS


def test_the_stretch_is_four_times_the_window_that_is_read_not_the_longest_one() -> None:
    window = filled(200, waits_per_tick=1)
    window.keep_for(5 * SECOND_NS)
    for tick in range(200, 300):
        window.push(tick * TICK_NS, sample(waits=tick, oncpu_ns=tick * TICK_NS // 4))
    for least, span_s in ((1, 1), (15, 3), (50, 4), (1000, 4)):
        reading = window.read(SECOND_NS, least)
        assert reading is not None
        assert reading.span_ns == span_s * SECOND_NS
    reading = window.read(5 * SECOND_NS, 1000)
    assert reading is not None
    assert reading.span_ns == 20 * SECOND_NS


def test_the_stretch_of_a_window_of_counters_ends_at_four_windows() -> None:
    window = DeltaWindow()
    window.keep_for(5 * SECOND_NS)
    for tick in range(300):
        window.push(tick * TICK_NS, (tick,))
    for least, span_s in ((1, 1), (15, 3), (50, 4), (1000, 4)):
        assert window.read(SECOND_NS, least) == Delta(span_s * SECOND_NS, (5 * span_s,))
    assert window.read(5 * SECOND_NS, 1000) == Delta(20 * SECOND_NS, (100,))


def test_counters_that_shrink_start_the_window_again() -> None:
    window = filled(10)
    window.push(10 * TICK_NS, sample(waits=3))
    assert window.read(SECOND_NS, 1) is None
    window.push(11 * TICK_NS, sample(waits=7))
    reading = window.read(SECOND_NS, 1)
    assert reading is not None
    assert reading.samples == 4


def indicator(window: WaitWindow, alive: bool = True) -> Indicator:
    spec = make_spec()
    reading = window.read(spec.window_ns, spec.min_samples)
    measured = measure_waits(spec, reading, 0.005) if alive else STALE
    return service_indicator("web", spec, [(WEB, measured)])


def test_status_fresh_idle_and_stale() -> None:
    assert indicator(filled(50)).status is IndicatorStatus.FRESH
    assert indicator(filled(50), alive=False).status is IndicatorStatus.STALE
    quiet = WaitWindow(SECOND_NS)
    for tick in range(10):
        quiet.push(tick * TICK_NS, sample(waits=tick))
    assert indicator(quiet).status is IndicatorStatus.IDLE


def test_a_starved_service_is_not_idle_and_its_few_waits_count() -> None:
    window = WaitWindow(SECOND_NS)
    for tick in range(10):
        window.push(tick * TICK_NS, sample(waits=tick, slow=tick, inflicted_ns=tick * TICK_NS))
    starved = indicator(window)
    assert starved.status is IndicatorStatus.FRESH
    assert starved.value is not None


def test_a_running_service_with_few_waits_has_no_value_yet() -> None:
    window = WaitWindow(SECOND_NS)
    for tick in range(10):
        window.push(tick * TICK_NS, sample(waits=tick, oncpu_ns=tick * TICK_NS))
    fresh = indicator(window)
    assert fresh.status is IndicatorStatus.FRESH
    assert fresh.value is None


def test_the_indicator_of_a_service_is_that_of_its_worst_workload() -> None:
    other = CgroupId("cpu", 2)
    slow = WaitWindow(SECOND_NS)
    for tick in range(10):
        slow.push(tick * TICK_NS, sample(waits=tick * 10, slow=tick * 10, oncpu_ns=tick * TICK_NS))
    measured = [
        (WEB, measure_waits(make_spec(), filled(20).read(SECOND_NS, 20), 0.005)),
        (other, measure_waits(make_spec(), slow.read(SECOND_NS, 20), 0.005)),
        (CgroupId("cpu", 3), STALE),
    ]
    worst = service_indicator("web", make_spec(), measured)
    assert worst.worst == other
    assert worst.status is IndicatorStatus.FRESH


def test_a_quiescent_window_needs_no_pushes() -> None:
    dense, skipped = WaitWindow(SECOND_NS), WaitWindow(SECOND_NS)
    times_ns = [tick * TICK_NS for tick in range(60)]
    pushes = 0
    for tick, time_ns in enumerate(times_ns):
        now = sample(waits=min(tick, 5) + max(0, tick - 50))
        dense.push(time_ns, now)
        if skipped.is_quiescent and tick <= 50:
            reading = dense.read(SECOND_NS, 1)
            assert reading is not None
            assert (reading.samples, reading.oncpu_ratio, reading.inflicted_ratio) == (0, 0, 0)
            continue
        pushes += 1
        skipped.catch_up(times_ns[:tick])
        skipped.push(time_ns, now)
        for least in (0, 1, 3, 100):
            assert skipped.read(SECOND_NS, least) == dense.read(SECOND_NS, least)
    assert pushes < 40


def test_a_quiescent_service_is_idle_and_active_again_at_once() -> None:
    profiles = make_settings().profiles
    web = Workload("web", WEB, "/web", QosClass.LS, service="web", profile="default")
    workload_index, tracker = WorkloadIndex([web], profiles), IndicatorTracker()
    (spec,) = profiles["default"].indicators

    def indicator(tick: int, waits: int, age_ns: int = 0) -> Indicator:
        now = sample(waits=waits, oncpu_ns=waits * TICK_NS // 10)
        snapshot = Snapshot(time_ns=tick * TICK_NS, age_ns=age_ns, workloads=(now,))
        tracker.update(
            snapshot, workload_index, TICK_NS, oldest_ns=TICK_NS, longest_gap_ns=5 * TICK_NS
        )
        found = tracker.indicator(workload_index.services["web"], spec)
        assert found is not None
        return found

    for tick in range(100):
        found = indicator(tick, 100)
    assert found.status is IndicatorStatus.IDLE
    assert indicator(100, 100, age_ns=SECOND_NS).status is IndicatorStatus.STALE
    assert indicator(101, 100).status is IndicatorStatus.IDLE
    active = indicator(102, 200)
    assert (active.status, active.samples) == (IndicatorStatus.FRESH, 100)
