# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Charts: axes with times of day, single points, and what a screen reader hears."""

from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest

from controller.page.chart import WIDTH, Chart, Marker, Series


def drawing(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg())


def ticks(chart: Chart) -> list[str]:
    return [
        each.text or ""
        for each in drawing(chart).findall("text")
        if each.get("text-anchor") == "middle" and each.get("class") == "tick"
    ]


def test_the_clock_has_round_times() -> None:
    since = datetime(2030, 1, 31, 22, 48, 30, tzinfo=UTC)
    chart = Chart(title="t", unit="u", seconds=3 * 3600.0, series=[], since=since)
    assert ticks(chart)[:4] == ["23:00", "23:20", "23:40", "00:00"]


def test_time_without_a_clock_counts_from_the_begin() -> None:
    chart = Chart(title="t", unit="u", seconds=25.0, series=[])
    assert ticks(chart) == [f"{second} s" for second in range(0, 26, 5)]
    long = Chart(title="t", unit="u", seconds=40_000.0, series=[])
    assert ticks(long)[:3] == ["0 h", "1 h", "2 h"]


@pytest.mark.parametrize("seconds", [20.0, 100.0, 119.9, 120.0, 3600.0, 6 * 3600.0])
def test_no_time_label_is_cut_or_covers_the_next(seconds: float) -> None:
    since = datetime(2030, 1, 31, 22, 48, 0, tzinfo=UTC)
    chart = Chart(title="t", unit="u", seconds=seconds, series=[], since=since)
    # In the largest type of a page, half a label is as wide as this.
    half = {"HH:MM:SS": 33.0, "HH:MM": 21.0}
    before = 0.0
    for each in drawing(chart).findall("text"):
        if each.get("text-anchor") == "middle" and each.get("class") == "tick":
            x, width = float(each.get("x") or 0), half["HH:MM:SS"[: len(each.text or "")]]
            assert before <= x - width
            before = x + width
            assert before <= WIDTH


def test_a_single_point_between_gaps_is_a_dot() -> None:
    points = ((0.0, None), (1.0, 0.5), (2.0, None), (3.0, 0.5))
    series = Series(label="x", style="a", points=points)
    (path,) = drawing(Chart(title="t", unit="u", seconds=3.0, series=[series])).findall("path")
    assert (path.get("d") or "").count("h0") == 2


def test_a_chart_is_described_in_words() -> None:
    series = Series(label="web", style="a", points=((0.0, 0.5), (1.0, 4.0), (2.0, 1.5)))
    empty = Series(label="db", style="b", points=())
    chart = Chart(
        title="ratio", unit="times", seconds=3.0, series=[series, empty], markers=[Marker(1.0, "x")]
    )
    assert drawing(chart).get("aria-label") == (
        "ratio (times). web: 0.5 to 4, at last 1.5; db: no data; 1 events"
    )
