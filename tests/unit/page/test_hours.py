# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Moments become a bounded number of buckets of a bounded size, and these become charts."""

from datetime import UTC

import pytest

from controller.core.decision import (
    Cause,
    ChannelState,
    Culprit,
    Demand,
    IndicatorStatus,
    LoopReport,
)
from controller.core.model import CgroupId, Channel, IndicatorName
from controller.page.chart import Chart
from controller.page.document import Share, Table, Text
from controller.page.hours import Hours, sections

S = 10**9


def loop(service: str, ratio: float) -> LoopReport:
    return LoopReport(
        service=service,
        indicator=IndicatorName.RUNQ_P99,
        channel=Channel.CPU,
        status=IndicatorStatus.FRESH,
        value=ratio * 2e6,
        sweet_point=2e6,
        deviation=None,
        filtered_deviation=None,
        demand=0.0,
        selected=True,
        is_time=True,
    )


def demand(applied: float) -> Demand:
    return Demand(channel=Channel.CPU, wanted=applied, applied=applied, state=ChannelState.SQUEEZE)


def cause(service: str, *shares: tuple[int, float]) -> Cause:
    culprits = tuple(Culprit(CgroupId("cpu", number), share) for number, share in shares)
    return Cause(channel=Channel.CPU, service=service, be_share=None, culprits=culprits)


def take(hours: Hours, time_ns: int, ratio: float = 0.5, applied: float = 0.0) -> None:
    hours.take(time_ns, loops=[loop("web", ratio)], demands=[demand(applied)])


def test_a_bucket_has_the_worst_moment() -> None:
    hours = Hours(60 * S, 10)
    for second, ratio, applied in ((60, 0.5, 0.0), (61, 3.0, 0.2), (62, 0.7, 0.9), (119, 1.0, 0.1)):
        take(hours, second * S, ratio, applied)
    take(hours, 120 * S)
    first, last = hours.copy()[0]
    assert (first.began_ns, last.began_ns) == (60 * S, 120 * S)
    assert first.ratios == {("web", "runq_p99"): 3.0}
    assert first.demands == {"cpu": 0.9}


def test_the_oldest_go() -> None:
    hours = Hours(S, 10)
    for second in range(25):
        take(hours, second * S)
    assert [each.began_ns // S for each in hours.copy()[0]] == list(range(15, 25))


def test_a_whole_recording_gets_wider_buckets() -> None:
    hours = Hours(S, 10, widest_ns=None)
    for second in range(100):
        take(hours, second * S, ratio=second, applied=second / 100)
    buckets, _ = hours.copy()
    assert hours.width_ns == 16 * S
    assert [each.began_ns // S for each in buckets] == [0, 16, 32, 48, 64, 80, 96]
    assert [each.ratios["web", "runq_p99"] for each in buckets] == [15, 31, 47, 63, 79, 95, 99]


def test_a_young_agent_has_narrow_buckets_that_widen_up_to_a_limit() -> None:
    hours = Hours(15 * S, 10, widest_ns=60 * S)
    take(hours, 0)
    take(hours, 15 * S)
    assert [each.began_ns // S for each in hours.copy()[0]] == [0, 15]
    for second in range(0, 1200, 15):
        take(hours, second * S)
    assert hours.width_ns == 60 * S
    assert [each.began_ns // S for each in hours.copy()[0]] == list(range(600, 1200, 60))


def test_a_bucket_is_small_however_large_the_node_is() -> None:
    hours = Hours(60 * S, 10)
    for number in range(100):
        hours.take(
            0,
            loops=[loop(f"web-{number}", 1.0 + number)],
            demands=(),
            causes=[cause(f"web-{number % 50}", *((10 * number + each, 0.1) for each in range(5)))],
            events=[f"event {number}"] * 10,
        )
    (bucket,), events = hours.copy()
    # The worst ones.
    assert sorted(bucket.ratios.values()) == [float(each) for each in range(85, 101)]
    assert len(bucket.shares) == 8
    assert all(len(each) <= 8 for each in bucket.shares.values())
    assert len(events) == 200


def test_a_clock_that_was_ahead_leaves_nothing() -> None:
    hours = Hours(60 * S, 10)
    for minute in (1, 2, 900, 901, 3, 4):
        take(hours, minute * 60 * S)
    # A step back within a bucket's width is none.
    take(hours, 4 * 60 * S - 1, ratio=9.0)
    buckets, _ = hours.copy()
    assert [each.began_ns // (60 * S) for each in buckets] == [1, 2, 3, 4]
    assert buckets[-1].ratios["web", "runq_p99"] == 9.0


def test_a_copy_does_not_change() -> None:
    hours = Hours(60 * S, 10)
    take(hours, 0, 1.0)
    (before,), _ = hours.copy()
    take(hours, S, 5.0)
    assert before.ratios["web", "runq_p99"] == 1.0


def charts(hours: Hours) -> list[Chart]:
    return [part for part in next(sections(hours, UTC)).parts if isinstance(part, Chart)]


def test_a_line_has_a_gap_where_no_agent_ran() -> None:
    hours = Hours(60 * S, 100)
    for minute in (0, 1, 3, 10, 11):  # minute 2: late by a second
        take(hours, minute * 60 * S)
    ratios, goal = charts(hours)[0].series
    assert [value for _, value in ratios.points] == [0.5, 0.5, 0.5, None, 0.5, 0.5]
    assert [value for _, value in goal.points] == [1.0, 1.0]


def test_a_quiet_minute_of_an_agent_with_narrow_buckets_is_no_gap() -> None:
    hours = Hours(S, 360, widest_ns=60 * S)
    for second in (0, 1, 2, 3, 4, 64, 65, 66):
        take(hours, second * S)
    chart = charts(hours)[0]
    assert None not in [value for _, value in chart.series[0].points]
    assert chart.title.endswith("the worst moment of each second")


def test_moments_further_apart_than_a_bucket_are_one_line() -> None:
    hours = Hours(S // 5, 720, widest_ns=None)
    for second in range(0, 100, 2):
        take(hours, second * S)
    assert None not in [value for _, value in charts(hours)[0].series[0].points]


def test_markers_are_where_the_decisions_are() -> None:
    hours = Hours(60 * S, 3)
    for minute in range(5):
        hours.take(minute * 60 * S + S, loops=(), demands=(), events=[f"at {minute}\x1b"])
    # Those before the first bucket are not shown.
    assert [(each.time_s, each.text) for each in charts(hours)[0].markers] == [
        (1.0, r"at 2\x1b"),
        (61.0, r"at 3\x1b"),
        (121.0, r"at 4\x1b"),
    ]


def test_blame_is_an_average_over_the_time_in_which_a_service_was_hurt() -> None:
    hours = Hours(60 * S, 10)
    names = {CgroupId("cpu", 1): "batch-1", CgroupId("cpu", 2): "batch-2"}
    for second, found in (
        (0, [cause("web", (1, 0.9), (2, 0.1))]),
        (60, [cause("web", (1, 0.3))]),
        (120, []),
    ):
        hours.take(second * S, loops=(), demands=(), causes=found, names=names.__getitem__)
    (table,) = [*sections(hours, UTC)][1].parts
    assert isinstance(table, Table)
    assert table.headings == ("service", "batch-1", "batch-2", "all others")
    ((name, *shares),) = table.rows
    assert name == "web on cpu"
    parts = [each.part for each in shares if isinstance(each, Share)]
    assert parts == pytest.approx([0.6, 0.05, 0.35])


def test_no_blame() -> None:
    hours = Hours(60 * S, 10)
    take(hours, 0)
    (part,) = [*sections(hours, UTC)][1].parts
    assert isinstance(part, Text)
