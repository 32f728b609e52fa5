# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""README's table of a comparison."""

from dataclasses import replace
from pathlib import Path
import re

import pytest

from controller.demo.cgroups import DemoError
from tests.compare.readme import insert, table
from tests.compare.record import ALONE
from tests.compare.results import OURS, SCHED_IDLE
from tests.unit.compare.made import BLOCK, blocks

README = Path(__file__).parents[3] / "README.md"
BLOCKS = [
    *blocks(ALONE, [0, 0], [0, 0]),
    *blocks(OURS, [9], [0], p99_ms=1.2),
    replace(BLOCK, policy=OURS, round=2, work=10, p99_ms=(1.2,) * 20, writes=3),
    *blocks("observe", [10, 10], [0, 0], p99_ms=1.5),
    *blocks("none", [10, 11], [9, 9], p99_ms=8.0),
    *blocks(SCHED_IDLE, [10, 10], [0, 0], p99_ms=1.5),
]


def test_the_table_has_the_default_of_a_cluster_and_ours_but_not_the_mode_that_observes() -> None:
    _, _, *rows, _, limited, _ = table(BLOCKS)
    assert [row.split(" | ")[0] for row in rows] == [
        "| CPUs shared: none",
        f"| CPUs shared: {OURS}",
    ]
    assert rows[1].startswith(f"| CPUs shared: {OURS} | 0.8 [0.8, 0.8] | +0.0 [")
    assert limited.startswith("sweetpoint limited the CPUs of the job in 1 of 2 blocks")


def test_readme_has_at_most_four_rows() -> None:
    shown = re.findall(r"^\| (?:CPUs|link) shared: .*", README.read_text(), re.MULTILINE)
    assert [row.split(" | ")[0] for row in shown] == [
        "| CPUs shared: none",
        "| CPUs shared: katalyst",
        f"| CPUs shared: {OURS}",
        f"| link shared: {OURS}",
    ]


def test_the_table_in_readme_is_replaced_and_nothing_else() -> None:
    text = README.read_text()
    once = insert(text, iter(["| a table |"]))
    assert "\n| a table |\n" in once
    assert "CPUs shared: none" not in once
    assert insert(once, iter(["| b |", "| c |"])).replace("| b |\n| c |", "| a table |") == once


def test_a_text_without_marks_is_refused() -> None:
    with pytest.raises(DemoError, match="lacks a line"):
        insert("# README\n", iter([]))
