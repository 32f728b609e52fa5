# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The page exists whatever a service reports: any finite figure, as value and as sweet point."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC
from itertools import pairwise
import json
import math
import re
from xml.etree import ElementTree

from hypothesis import example, given
from hypothesis import strategies as st

from controller.cli.top import plain
from controller.core.decision import IndicatorStatus, LoopReport
from controller.core.model import Channel, IndicatorName
from controller.core.units import NS_PER_SEC
from controller.page.chart import HEIGHT, WIDTH, Chart, Series
from controller.page.document import render
from controller.page.hours import Hours
from controller.page.node import node_document
from controller.page.view import Tracker

finite = st.floats(allow_nan=False, allow_infinity=False)
anything = st.one_of(st.none(), st.floats(), finite)
SMALLEST, LARGEST = 5e-324, 1.7976931348623157e308


def drawn(values: Iterable[float | None], *, log: bool) -> list[float]:
    """Draw *values*, one a second, and return the heights of the line's points.

    All of the chart lies in its picture, and the axis has a few different labels, upwards.
    """
    points = [(float(second), value) for second, value in enumerate(values)]
    series = Series(label="x", style="a", points=points)
    chart = Chart(title="t", unit="u", seconds=6.0, series=[series], log=log)
    svg = ElementTree.fromstring(chart.svg())
    ticks = [each for each in svg.findall("text") if each.get("text-anchor") == "end"]
    labels = [each.text for each in ticks]
    heights = [float(each.get("y") or "nan") for each in ticks]
    assert 2 <= len(set(labels)) == len(labels) <= 9, labels
    assert all(lower > upper for lower, upper in pairwise(heights)), heights
    line = svg.find("path")
    assert line is not None
    found = [
        tuple(map(float, each)) for each in re.findall(r"[ML](\S+) (\S+)", line.get("d") or "")
    ]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in found)
    return [y for _, y in found]


@given(st.lists(anything, max_size=6), st.booleans())
@example([SMALLEST], True)
@example([SMALLEST, LARGEST], True)
@example([LARGEST], True)
@example([-LARGEST, LARGEST], False)
@example([LARGEST], False)
@example([math.nan, math.inf, 1.0], False)
def test_a_chart_of_any_values(values: list[float | None], log: bool) -> None:
    line = drawn(values, log=log)
    shown = [v for v in values if v is not None and not math.isnan(v) and (v > 0 or not log)]
    assert len(line) == len(shown)


@given(st.lists(finite, min_size=2, max_size=6), st.booleans())
def test_greater_values_are_not_drawn_lower(values: list[float], log: bool) -> None:
    heights = drawn(sorted(map(abs, values) if log else values), log=log)
    assert heights == sorted(heights, reverse=True)


@given(finite, finite, st.booleans())
@example(SMALLEST, 1.0, False)
@example(1.0, SMALLEST, False)
@example(LARGEST, SMALLEST, True)
def test_the_page_of_a_service_with_any_figure(
    value: float, sweet_point: float, is_time: bool
) -> None:
    loop = LoopReport(
        service="web",
        indicator=IndicatorName.SERVICE,
        channel=Channel.CPU,
        status=IndicatorStatus.FRESH,
        value=value,
        sweet_point=sweet_point,
        deviation=1.0,
        filtered_deviation=1.0,
        demand=0.0,
        selected=True,
        is_time=is_time,
    )
    hours = Hours(NS_PER_SEC, 10)
    for second in range(3):
        hours.take(second * NS_PER_SEC, loops=[loop], demands=[])
    status = json.loads(json.dumps({"ready": True, "plan": {"loops": [asdict(loop)]}}))
    view = Tracker().update(status)
    page = "".join(render(node_document(view, status, hours, UTC, "host", 2)))
    assert page.count("<svg") >= 2
    assert "web" in "".join(plain(view, detail=True))
