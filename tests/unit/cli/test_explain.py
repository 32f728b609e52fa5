# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Times on the command line and in texts of ``sweetpoint explain``."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
import time

import pytest

from controller.agent.history.incidents import Squeeze, Suffering
from controller.cli.explain import span_ns
from controller.cli.explain_text import _paragraph, lasted
from controller.core.decision import Part, PartKind
from controller.core.model import Channel, Mode
from controller.core.units import NS_PER_SEC
from tests.support.reports import LOOP

ZONE = timezone(timedelta(hours=2))


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two hours before UTC on the date of the tests, with changes of the clock in other months."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


NOW = datetime(2020, 5, 17, 3, 30, tzinfo=ZONE)
NOW_NS = round(NOW.timestamp()) * NS_PER_SEC
HOUR_NS = 3600 * NS_PER_SEC


@pytest.mark.parametrize(
    ("since", "before_ns"),
    [
        ("2h", 2 * HOUR_NS),
        ("90s", 90 * NS_PER_SEC),
        ("03:00", HOUR_NS // 2),
        ("04:00", 24 * HOUR_NS - HOUR_NS // 2),  # of yesterday
        ("2020-05-17T01:30:00+02:00", 2 * HOUR_NS),
        ("2020-05-16T23:30:00Z", 2 * HOUR_NS),
        ("23:30Z", 2 * HOUR_NS),
    ],
)
def test_since(since: str, before_ns: int) -> None:
    assert span_ns(since, None, NOW) == (NOW_NS - before_ns, NOW_NS)


@pytest.mark.parametrize(
    ("at", "hours"), [("01:30", 10.5), ("23:00", 13.0), ("10:30", 0.5), ("12:00Z", 22.0)]
)
def test_times_before_a_change_of_the_clock(at: str, hours: float) -> None:
    """At 03:00 of that morning the clock was set back by an hour."""
    now = datetime(2020, 10, 25, 10, tzinfo=UTC)  # 11:00
    first_ns, last_ns = span_ns("24h", at, now.astimezone())
    assert (first_ns + last_ns) / 2 == (now - timedelta(hours=hours)).timestamp() * NS_PER_SEC


@pytest.mark.parametrize("at", ["0001-01-01T00:00", "9999-12-31T23:59:59"])
def test_a_time_at_the_end_of_the_calendar_is_refused(at: str) -> None:
    with pytest.raises(ValueError, match=r"too far from now|is not a time"):
        span_ns("24h", at, NOW)


def test_a_time_before_1970_is_that() -> None:
    assert span_ns("9999999h", None, NOW) == (0, NOW_NS)


def test_at_is_the_minute_around() -> None:
    minute_ns = 60 * NS_PER_SEC
    middle_ns = NOW_NS - HOUR_NS
    assert span_ns("24h", "02:30", NOW) == (middle_ns - minute_ns, middle_ns + minute_ns)


@pytest.mark.parametrize("text", ["", "yesterday", "2026", "25:00", "2020-13-01", "-2h", "9" * 400])
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        span_ns(text, None, NOW)


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0s"),
        (200_000_000, "200ms"),
        (59 * NS_PER_SEC, "59s"),
        (252 * NS_PER_SEC, "4min 12s"),
        (HOUR_NS, "1h"),
        (HOUR_NS + 61 * NS_PER_SEC, "1h 1min"),
        (50 * HOUR_NS, "50h"),
    ],
)
def test_lasted(time_ns: int, text: str) -> None:
    assert lasted(time_ns) == text


@pytest.mark.parametrize("mode", Mode)
def test_in_observe_mode_no_line_says_that_something_was_limited(mode: Mode) -> None:
    squeeze = Squeeze(began_ns=0, mode=mode, loop=LOOP, use_cpus=0.3, use_before_cpus=0.4)
    states = {"squeeze": NS_PER_SEC, "free": NS_PER_SEC}
    suffering = Suffering(
        began_ns=0, mode=mode, channel=Channel.CPU, loop=LOOP, states_ns=states, limited_ns=states
    )
    lines = [*_paragraph(squeeze), *_paragraph(suffering)]
    claims = [line for line in lines if "limited" in line and "would have been" not in line]
    assert bool(claims) is (mode is Mode.ENFORCE)


def test_parts_of_nothing_are_not_named() -> None:
    parts = (Part(PartKind.OUTSIDE, "/backup", 0.9), Part(PartKind.UNKNOWN, "", 0.004))
    suffering = Suffering(
        began_ns=0, mode=Mode.ENFORCE, channel=Channel.CPU, loop=LOOP, parts=parts
    )
    assert "    parts     on average outside /backup 90%" in [*_paragraph(suffering)]
