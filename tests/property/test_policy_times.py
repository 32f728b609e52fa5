# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The times of policies against the calendar of ``zoneinfo``, minute by minute.

The oracle walks through the minutes and keeps the latest local time that was reached so far. Such
a clock jumps over what is skipped, and stands while an hour is repeated. A policy is in force while
this clock is inside one of its windows. So a skipped time counts at the first moment after the gap,
and a doubled one at its first occurrence.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache
from zoneinfo import ZoneInfo

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest

from controller.config.calendar_window import Window, instant_s
from controller.config.policies import Policy, Situation, find_in_force

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # by 30 minutes
    "America/Santiago",  # at midnight, so that a day begins at 01:00
    "Asia/Kathmandu",  # 5:45 from UTC
    "Africa/Casablanca",  # the other way round, for a month
    "UTC",
)
FIRST, LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2020, 2030))
MINUTE, HOUR, DAY = 60, 3600, 86400


@cache
def transitions(name: str) -> tuple[int, ...]:
    """The moments of ten years at which clocks are changed; without any, a few others."""
    zone = ZoneInfo(name)

    def offset(moment: int) -> timedelta | None:
        return datetime.fromtimestamp(moment, zone).utcoffset()

    found = []
    for day in range(FIRST, LAST, DAY):
        if (before := offset(day)) != offset(day + DAY):
            minutes = range(day, day + DAY + 1, MINUTE)
            found.append(next(each for each in minutes if offset(each) != before))
    return tuple(found) or (FIRST, (FIRST + LAST) // 2)


def is_inside(window: Window, local: datetime) -> bool:
    """Whether *local*, without a zone, is inside the window by the calendar alone."""
    for back in range(2 if window.until_weekday is None else 9):
        day = local.date() - timedelta(back)
        if day.weekday() not in window.weekdays or day.day not in window.dates:
            continue
        if day.month not in window.months:
            continue
        begin = datetime.combine(day, time()) + timedelta(minutes=window.from_min)
        end = first_after(begin, window.until_min, window.until_weekday)
        if begin <= local < end:
            return True
    return False


def first_after(begin: datetime, until_min: int, weekday: int | None) -> datetime:
    """The first time of this kind after *begin*: 24:00 belongs to the day before."""
    day: date = begin.date()
    while True:
        if weekday in (None, day.weekday()):
            end = datetime.combine(day, time()) + timedelta(minutes=until_min)
            if end > begin:
                return end
        day += timedelta(1)


def changes_by_minutes(
    windows: Sequence[Window], zone: tzinfo, first: int, last: int
) -> Iterator[tuple[int, bool]]:
    """Yield each minute from *first* on at which the policy begins or ends, and which."""
    latest = datetime.min
    was_inside = None
    # From the hour before it, so that the latest local time is right.
    for moment in range(first - HOUR, last, MINUTE):
        local = datetime.fromtimestamp(moment, zone).replace(tzinfo=None, fold=0)
        if local <= latest and was_inside is not None:
            continue
        latest = max(latest, local)
        inside = any(is_inside(each, latest) for each in windows)
        if moment >= first and was_inside is not None and inside is not was_inside:
            yield moment, inside
        was_inside = inside


def changes_by_policy(policy: Policy, first: int, last: int) -> Iterator[tuple[int, bool]]:
    """Yield the same by walking from one change to the next."""
    now_s: float = first - 1
    while True:
        found = find_in_force([policy], Situation({}, now_s))
        if found.next_change_s is None or found.next_change_s >= last:
            return
        assert found.next_change_s > now_s
        now_s = found.next_change_s
        inside = bool(find_in_force([policy], Situation({}, now_s)).entries)
        assert inside is not bool(found.entries)
        yield round(now_s), inside


def make(zone: tzinfo, **fields: object) -> Window:
    return Window(zone=zone, **fields)  # type: ignore[arg-type]


minutes = st.integers(0, 1439) | st.sampled_from([0, 59, 60, 90, 119, 120, 150, 179, 180, 1439])
some = st.frozensets


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, int, tuple[Window, ...]]:
    name = draw(st.sampled_from(ZONES))
    zone = ZoneInfo(name)
    window = st.builds(
        Window,
        zone=st.just(zone),
        weekdays=some(st.integers(0, 6), min_size=1) | st.just(frozenset(range(7))),
        dates=some(st.integers(1, 31), min_size=10) | st.just(frozenset(range(1, 32))),
        months=some(st.integers(1, 12), min_size=6) | st.just(frozenset(range(1, 13))),
        from_min=minutes,
        until_min=minutes.map(lambda each: each + 1),
        until_weekday=st.none() | st.integers(0, 6),
    )
    windows = draw(st.lists(window, min_size=1, max_size=2))
    return name, draw(st.sampled_from(transitions(name))), tuple(windows)


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_a_policy_begins_and_ends_as_a_clock_that_never_goes_back(
    case: tuple[str, int, tuple[Window, ...]],
) -> None:
    name, transition, windows = case
    policy = Policy(name="p", place=0, nodes=None, windows=windows, sets={})
    first, last = transition - 25 * HOUR, transition + 25 * HOUR
    expected = [*changes_by_minutes(windows, ZoneInfo(name), first, last)]
    assert [*changes_by_policy(policy, first, last)] == expected


@pytest.mark.parametrize("name", ZONES)
def test_every_change_of_clocks_in_ten_years(name: str) -> None:
    """A night that begins and one that ends in the hour that is skipped or comes twice."""
    zone = ZoneInfo(name)
    for transition in transitions(name):
        local = datetime.fromtimestamp(transition, zone)
        around = 60 * local.hour + local.minute
        for shift in (-20, 20):
            minute = (around + shift) % 1440
            for window in (
                make(zone, from_min=1200, until_min=minute or 1440),
                make(zone, from_min=minute, until_min=1200),
            ):
                policy = Policy(name="p", place=0, nodes=None, windows=(window,), sets={})
                first, last = transition - HOUR, transition + 2 * HOUR
                expected = [*changes_by_minutes([window], zone, first, last)]
                assert [*changes_by_policy(policy, first, last)] == expected, (local, window)


@settings(max_examples=300)
@given(
    name=st.sampled_from(ZONES),
    moment=st.integers(FIRST // MINUTE, LAST // MINUTE - 1).map(lambda each: each * MINUTE),
)
@example(name="Australia/Lord_Howe", moment=transitions("Australia/Lord_Howe")[0] - MINUTE)
def test_a_time_that_comes_once_is_its_moment(name: str, moment: int) -> None:
    zone = ZoneInfo(name)
    local = datetime.fromtimestamp(moment, zone)
    if not local.fold:
        assert instant_s(local.replace(tzinfo=None), zone) == moment
    else:
        assert instant_s(local.replace(tzinfo=None, fold=0), zone) < moment
