# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Decisions in succession that differ in figures only are one row."""

from typing import Any

import pytest

from controller.page.decisions import decision_table, fold

S = 10**9


def decision(at_s: int, says: str, subject: str = "web") -> dict[str, Any]:
    return {"time_ns": at_s * S, "subject": subject, "text": says}


def test_equal_ones_in_succession_are_one_row() -> None:
    found = fold(
        [
            decision(1, "web p99 5ms > 2ms, best-effort caused 4%"),
            decision(2, "web p99 5.5ms > 2ms, best-effort caused 12%"),
            decision(3, "web p99 514us <= 2ms, best-effort caused 0%"),
            decision(4, "web p99 1.2s > 2ms, best-effort caused 4%"),
            decision(5, "web p99 1.2s > 2ms, best-effort caused 4%", subject="db"),
        ]
    )
    assert [
        (each.subject, each.count, each.first_ns // S, each.last_ns // S) for each in found
    ] == [
        *(("db", 1, 5, 5), ("web", 1, 4, 4), ("web", 1, 3, 3), ("web", 2, 1, 2)),
    ]
    assert found[-1].text == "web p99 5.5ms > 2ms, best-effort caused 12%"


def test_a_row_tells_when_how_often_and_about_whom() -> None:
    decisions = [decision(at_s, f"web p99 {at_s}ms > 2ms") for at_s in (10, 20, 40)]
    table = decision_table({"time_ns": 50 * S, "decisions": decisions}, 5)
    assert table is not None
    (row,) = [[str(cell).replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in table.rows]
    assert row == ["10 s ago", "web", "p99 40 ms > 2 ms", "3 in 30 s"]


def test_the_newest_rows_are_shown() -> None:
    decisions = [decision(at_s, "x", subject=f"web-{at_s}") for at_s in range(9)]
    table = decision_table({"time_ns": 9 * S, "decisions": decisions}, 2)
    assert table is not None
    assert [row[1] for row in table.rows] == ["web-8", "web-7"]


@pytest.mark.parametrize("odd", [None, 7, "x", [], [7], {"a": 1}])
def test_a_page_of_another_version_has_no_decisions(odd: object) -> None:
    assert decision_table({"decisions": odd}, 5) is None
    assert decision_table({"decisions": [{"text": odd}]}, 5) is not None
