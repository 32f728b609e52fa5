# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The forecast of an hour: percentile, fading, what a set clock does, and its verdict on itself."""

import random

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
import numpy as np
import pytest

from controller.config.sections.kubernetes_capacity import ReclaimLimits
from controller.core.units import NS_PER_SEC
from controller.kube.capacity import Expected, Forecast, ForecastRecord, Reclaimable

HOUR_NS = 3600 * NS_PER_SEC
WEEK = 168
MINUTE_NS = 60 * NS_PER_SEC
PARTS = 59  # so that the percentile lies at none of their borders
QUICK = hypothesis_settings(max_examples=50, deadline=None)
RATIO = st.floats(0.0, 1.0)


def measure(forecast: Forecast, hour: int, *ratios: float) -> None:
    """Take *ratios* by turns in equal parts of the *hour* since 1970."""
    forecast.update(hour * HOUR_NS, hour * HOUR_NS, 0.0)
    for part in range(PARTS):
        at_ns = hour * HOUR_NS + (part + 1) * HOUR_NS // PARTS - 1
        forecast.update(at_ns, at_ns, ratios[part % len(ratios)])


def end(forecast: Forecast, hour: int) -> bool:
    return forecast.update((hour + 1) * HOUR_NS, (hour + 1) * HOUR_NS, 0.0)


def of(forecast: Forecast, hour: int) -> float | None:
    found = forecast.expected(hour * HOUR_NS, 0)
    return None if found is None else found.use_ratio


@given(st.lists(RATIO, min_size=PARTS, max_size=PARTS), st.randoms(use_true_random=False))
@QUICK
def test_the_percentile_is_that_of_numpy_in_any_order(
    ratios: list[float], chance: random.Random
) -> None:
    records = []
    for _ in range(2):
        forecast = Forecast(0.1)
        measure(forecast, 5, *ratios)
        assert end(forecast, 5)
        found = of(forecast, 5 + WEEK)
        exact = float(np.quantile(ratios, 0.95, method="inverted_cdf"))
        assert exact - 1e-9 <= (found or 0.0) <= exact + 0.01 + 1e-9
        records.append(dict(forecast.record.cells[5]))
        chance.shuffle(ratios)
    for bucket in records[0] | records[1]:
        assert records[0][bucket] == pytest.approx(records[1][bucket], abs=1)
    assert sum(records[0].values()) == pytest.approx(3600, abs=PARTS)


def test_a_week_halves_the_weight() -> None:
    forecast = Forecast(0.1)
    for week in range(3):
        hour = week * WEEK + 7
        measure(forecast, hour, 0.1 + 0.2 * week)
        end(forecast, hour)
    cell = dict(forecast.record.cells[7])
    assert [cell[bucket] for bucket in (50, 30, 10)] == pytest.approx([3600, 1800, 900], abs=2)


def test_a_surprise_fades_in_five_weeks() -> None:
    forecast, found = Forecast(0.1), []
    for week in range(7):
        measure(forecast, week * WEEK, 0.2 if week else 0.8)
        end(forecast, week * WEEK)
        found.append(of(forecast, (week + 1) * WEEK))
    assert found[:4] == [0.81] * 4
    assert found[5:] == [pytest.approx(0.21)] * 2


def test_the_highest_of_the_hours_that_are_touched() -> None:
    forecast = Forecast(0.1)
    for hour, ratio in ((10, 0.2), (11, 0.5), (12, 0.9), (13, 0.1)):
        measure(forecast, hour, ratio)
    end(forecast, 13)
    at_ns = (10 + WEEK) * HOUR_NS
    hold = HOUR_NS // 2
    assert forecast.expected(at_ns + hold - 1, hold) == Expected(0.21, 4 / WEEK)
    assert forecast.expected(at_ns + hold, hold) == Expected(0.51, 4 / WEEK)
    assert forecast.expected(at_ns + hold, 2 * HOUR_NS) == Expected(0.91, 4 / WEEK)
    assert forecast.expected(at_ns + 2 * HOUR_NS + hold, hold) == Expected(0.91, 4 / WEEK)
    assert forecast.expected(at_ns + 4 * HOUR_NS - hold, hold) is None, "14 h was never measured"


def test_another_day_stands_for_an_hour_that_was_never_measured() -> None:
    forecast = Forecast(0.1)
    for day, ratio in enumerate((0.3, 0.6)):
        measure(forecast, 24 * day + 8, ratio)
        end(forecast, 24 * day + 8)
    assert of(forecast, 24 * 5 + 8) == 0.61
    assert of(forecast, WEEK + 8) == pytest.approx(0.31)
    assert of(forecast, 24 * 5 + 9) is None


def test_an_hour_breaks_its_forecast_by_more_than_the_reserve() -> None:
    forecast = Forecast(0.1)
    for week, ratio in enumerate((0.4, 0.49, 0.75, 0.2)):
        measure(forecast, week * WEEK, ratio)
        end(forecast, week * WEEK)
    assert (forecast.hours, forecast.judged, forecast.broken) == (4, 3, 1)


def test_less_than_half_an_hour_does_not_count() -> None:
    forecast = Forecast(0.1)
    for at_ns in range(0, 29 * MINUTE_NS, MINUTE_NS):
        forecast.update(at_ns, at_ns, 0.5)
    assert not end(forecast, 0)
    forecast.update(2 * HOUR_NS - 1, 2 * HOUR_NS - 1, 0.5)  # a gap is no measurement
    assert not end(forecast, 1)
    assert forecast.record == ForecastRecord()


@pytest.mark.parametrize("set_ns", [-30 * 365 * 24 * HOUR_NS, -HOUR_NS, 4 * MINUTE_NS, 10**20])
def test_an_hour_in_which_the_clock_was_set_is_left_out(set_ns: int) -> None:
    forecast = Forecast(0.1)
    measure(forecast, 3, 0.2)
    end(forecast, 3)
    known = forecast.record
    for minute in range(61):
        at_ns = (WEEK + 3) * HOUR_NS + minute * MINUTE_NS
        # It is another time after most of the hour, although the rest is short.
        shift_ns = set_ns if minute >= 40 else 0
        forecast.update(at_ns, at_ns + shift_ns, 0.9)
    assert forecast.record == known


@given(
    st.lists(
        st.tuples(st.integers(0, 2 * HOUR_NS), st.integers(-(10**20), 10**20), RATIO), max_size=60
    )
)
@QUICK
def test_no_clock_leads_to_a_record_that_is_not_sane(steps: list[tuple[int, int, float]]) -> None:
    forecast, now_ns = Forecast(0.1), 0
    for passed_ns, wall_ns, ratio in steps:
        now_ns += passed_ns
        forecast.update(now_ns, wall_ns, ratio)
        forecast.expected(wall_ns)
    assert forecast.record.is_sane


@given(st.lists(st.tuples(st.integers(0, 3 * WEEK), RATIO), max_size=8))
@QUICK
def test_a_restored_forecast_is_equal(hours: list[tuple[int, float]]) -> None:
    forecast = Forecast(0.1)
    for hour, ratio in hours:
        measure(forecast, hour, ratio)
        end(forecast, hour)
    restored = Forecast(0.1, forecast.record)
    assert restored.record == forecast.record
    assert forecast.record.is_sane
    for hour in range(0, WEEK, 23):
        assert restored.expected(hour * HOUR_NS) == forecast.expected(hour * HOUR_NS)


@pytest.mark.parametrize(
    "record",
    [
        ForecastRecord(hours=-1),
        ForecastRecord(hours=1 << 60),
        ForecastRecord(hours=3, judged=2, broken=3),
        ForecastRecord(cells=()),
        ForecastRecord(cells=(((100, 5),), *((),) * 167)),
        ForecastRecord(cells=(((5, 0),), *((),) * 167)),
        ForecastRecord(cells=(((5, 1 << 40),), *((),) * 167)),
        ForecastRecord(cells=(((5, 1),) * 101, *((),) * 167)),
    ],
)
def test_numbers_out_of_range_are_not_sane(record: ForecastRecord) -> None:
    assert not record.is_sane


def offer(expected: Expected | None, others: float = 2.0, granted: float = 0.0) -> float:
    reclaimable = Reclaimable(ReclaimLimits())
    for second in range(1000):
        found = reclaimable.update(second * NS_PER_SEC, 16.0, others, granted, None, expected)
    return found


def test_the_offer_is_the_lesser_of_both_by_the_weight_of_the_forecast() -> None:
    rule = offer(None)
    assert rule == pytest.approx(16 * 0.9 - 2, rel=0.01)
    assert offer(Expected(0.5, 1.0)) == pytest.approx(16 * 0.4)
    assert offer(Expected(0.5, 0.25)) == pytest.approx(0.75 * rule + 0.25 * 16 * 0.4)
    assert offer(Expected(0.5, 0.0)) == offer(Expected(0.05, 1.0)) == rule
    assert offer(Expected(0.95, 1.0)) == 0.0
    assert offer(Expected(0.95, 1.0), granted=3.0) == 3.0, "no pod loses what it was promised"
