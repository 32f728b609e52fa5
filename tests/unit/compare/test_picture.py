# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a comparison: valid SVG, points within their panels, nothing beyond the border."""

from dataclasses import replace
import math
from xml.etree import ElementTree

import pytest

from tests.compare import picture
from tests.compare.picture import SHORT_WIDTH, Group, Line
from tests.compare.record import ALONE
from tests.compare.results import OURS, SCHED_IDLE
from tests.unit.compare.made import blocks

SVG = "{http://www.w3.org/2000/svg}"
BLOCKS = [
    *blocks(ALONE, [0, 0], [0, 0]),
    *blocks("none", [10, 11], [9, 9], p99_ms=8.0),
    *blocks(SCHED_IDLE, [10, 10], [0, 0], p99_ms=1.5),
    *blocks(OURS, [9, 10], [0, 0], p99_ms=1.2),
]


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_short_picture_has_a_line_for_each_policy() -> None:
    svg = picture.short(BLOCKS)
    found = texts(svg)
    for text in ("none", "8.0x", "105 %", SCHED_IDLE, "1.5x", "100 %", OURS, "1.2x", "95 %"):
        assert text in found
    assert ALONE not in found
    root = ElementTree.fromstring(svg)
    assert root.get("width") == str(SHORT_WIDTH)
    assert "none p99 8.00 times that alone, work 105%" in (root.get("aria-label") or "")
    assert "prefers-color-scheme: dark" in svg


def test_the_full_picture_has_each_mix() -> None:
    other = [replace(block, mix="memcached <bursty> & stream") for block in BLOCKS]
    found = texts(picture.every_mix([*BLOCKS, *other]))
    assert found.count(OURS) == 2
    assert "memcached <bursty> & stream" in found


@pytest.mark.parametrize(
    "line",
    [
        Line(policy=OURS, p99=(1.0, 0.0, math.inf), work=(0.0, 0.0, math.inf)),
        Line(policy=OURS, p99=(1e-5, 1e-6, 1e-4), work=(7.0, 6.0, 8.0)),
        Line(policy=OURS, p99=(1e6, 1e5, 1e7), work=None),
        Line(policy=OURS, p99=None, work=None),
    ],
)
def test_points_and_intervals_stay_in_the_picture(line: Line) -> None:
    svg = picture.draw([Group("mix", [line])], SHORT_WIDTH)
    for each in ElementTree.fromstring(svg).iter():
        for name in ("x", "x1", "x2", "cx"):
            if (value := each.get(name)) is not None:
                assert 0 <= float(value) <= SHORT_WIDTH


def test_a_policy_without_a_reference_has_no_point() -> None:
    found = texts(picture.short(blocks(OURS, [10, 10], [0, 0])))
    assert found.count("-") == 2
