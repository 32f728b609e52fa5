# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a tick finds that lets the next one be left out, limits from sweet points."""

from dataclasses import replace

import pytest

from controller.core.decision import IndicatorStatus, LoopReport
from controller.core.looks import (
    LONGEST_NS,
    LimitTable,
    PressureLimit,
    RatioLimit,
    Strain,
    WaitLimit,
    strain_in_plan,
)
from controller.core.model import CgroupId, Channel, IndicatorName, Pause, QosClass, Workload
from controller.core.settings import LoadBin
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import SECOND_NS, make_settings, make_spec

WEB = CgroupId("cpu", 1)
SERVICE = Workload("web", WEB, "/web", QosClass.LS, "web", "default")
FRESH = LoopReport(
    service="web",
    indicator=IndicatorName.RUNQ_P99,
    channel=Channel.CPU,
    status=IndicatorStatus.FRESH,
    value=1e6,
    sweet_point=2e6,
    deviation=-1.0,
    filtered_deviation=-1.0,
    demand=0.0,
    selected=False,
)
IDLE = replace(FRESH, status=IndicatorStatus.IDLE, value=None)


def index(pause: Pause | None = None, **changes: object) -> WorkloadIndex:
    settings = make_settings(replace(make_spec(2e6), **changes))  # type: ignore[arg-type]
    return WorkloadIndex((SERVICE,), settings.profiles, pause)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, Strain.WELL),
        ({"filtered_deviation": -0.2, "deviation": -0.2}, Strain.WELL),
        ({"deviation": -0.1}, Strain.NEAR),
        ({"filtered_deviation": -0.1}, Strain.NEAR),
        ({"deviation": 0.99}, Strain.NEAR),
        ({"deviation": 1.0}, Strain.HIGH),
        ({"filtered_deviation": 1.0}, Strain.HIGH),
        ({"deviation": None, "filtered_deviation": None}, Strain.WELL),
        *(({"status": each}, Strain.NEAR) for each in ("stale", "lost", "implausible")),
    ],
)
def test_how_the_worst_service_is(changes: dict[str, object], wanted: Strain) -> None:
    if "status" in changes:
        changes = {"status": IndicatorStatus(str(changes["status"]))}
    assert strain_in_plan([FRESH, replace(FRESH, **changes)]) is wanted  # type: ignore[arg-type]


def test_ticks_are_rarer_while_all_services_are_asleep() -> None:
    table = LimitTable()
    assert table.update(index(), (FRESH,)).longest_ns == SECOND_NS
    assert table.update(index(), (FRESH, IDLE)).longest_ns == SECOND_NS
    assert table.update(index(), (IDLE,)).longest_ns == LONGEST_NS
    assert table.update(index(), ()).longest_ns == LONGEST_NS


def test_a_short_window_makes_ticks_more_frequent() -> None:
    assert LimitTable().update(index(window_ns=SECOND_NS // 2), (FRESH,)).longest_ns == 5 * 10**8


def test_half_of_what_the_sweet_point_allows_is_the_limit() -> None:
    quiet = LimitTable().update(index(), (FRESH,))
    by_count, starved = quiet.waits
    assert by_count.share == pytest.approx(0.005)
    assert by_count == WaitLimit(WEB, 2e6, by_count.share, SECOND_NS, by_time=False)
    assert starved == WaitLimit(WEB, 2e6, 0.05, SECOND_NS, by_time=True)
    assert quiet.ratios == ()


def test_arrivals_are_limited_by_time() -> None:
    report = replace(FRESH, indicator=IndicatorName.RUNQ_DELAY_P99)
    (limit,) = LimitTable().update(index(name=IndicatorName.RUNQ_DELAY_P99), (report,)).waits
    assert limit == WaitLimit(WEB, 2e6, limit.share, SECOND_NS, by_time=True)
    assert limit.share == pytest.approx(0.005)


def test_a_ratio_is_limited_to_half_of_its_sweet_point() -> None:
    report = replace(FRESH, indicator=IndicatorName.WAIT_RATIO, sweet_point=0.3)
    quiet = LimitTable().update(index(name=IndicatorName.WAIT_RATIO), (report,))
    assert quiet.ratios == (RatioLimit(WEB, 0.15, 0.005 * SECOND_NS),)
    assert quiet.waits == ()


def test_pressure_is_limited_to_its_present_sweet_point() -> None:
    psi, table = index(name=IndicatorName.PSI_IO, window_ns=2 * SECOND_NS), LimitTable()
    for point in (0.3, 0.2):
        report = replace(FRESH, indicator=IndicatorName.PSI_IO, sweet_point=point)
        quiet = table.update(psi, (report,))
        assert quiet.pressures == (PressureLimit(WEB, IndicatorName.PSI_IO, point, 2 * SECOND_NS),)
    assert (quiet.waits, quiet.ratios) == ((), ())
    assert table.update(psi, (report,)).pressures is quiet.pressures


def test_the_limit_is_that_of_the_present_load_or_the_lowest() -> None:
    binned = index(bins=(LoadBin(1.0, 3e6), LoadBin(2.0, 1e6)))
    table = LimitTable()
    assert table.update(binned, (replace(FRESH, sweet_point=3e6),)).waits[0].sweet_ns == 3e6
    assert table.update(binned, (replace(FRESH, sweet_point=None),)).waits[0].sweet_ns == 1e6


def test_without_a_sweet_point_and_for_a_paused_service_there_is_no_limit() -> None:
    unknown = replace(FRESH, sweet_point=None)
    assert LimitTable().update(index(sweet_point=None), (unknown,)).waits == ()
    learned = index(name=IndicatorName.PSI_IO, sweet_point=None)
    assert LimitTable().update(learned, (unknown,)).pressures == ()
    paused = LimitTable().update(index(Pause(services=("web",))), (FRESH,))
    assert (paused.waits, paused.ratios) == ((), ())
    pressed = index(Pause(services=("web",)), name=IndicatorName.PSI_IO)
    assert LimitTable().update(pressed, (FRESH,)).pressures == ()


def test_unchanged_limits_stay_the_same_objects() -> None:
    table, same = LimitTable(), index()
    before = table.update(same, (FRESH,))
    assert table.update(same, (FRESH,)).waits is before.waits
    after = table.update(same, (replace(FRESH, sweet_point=3e6),))
    assert after.waits is not before.waits
