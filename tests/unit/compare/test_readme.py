# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""README's table of a comparison."""

from dataclasses import replace
from pathlib import Path

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


def test_ours_is_last_and_the_mode_that_only_observes_is_left_out() -> None:
    _, _, *rows, _, limited, _ = table(BLOCKS)
    assert len(rows) == 2
    assert [row.split(" | ")[0] for row in rows] == ["| none", f"| {OURS}"]
    assert rows[1].startswith(f"| {OURS} | 0.8 [0.8, 0.8] | +0.0 [")
    assert limited.startswith("sweetpoint limited the CPUs of the job in 1 of 2 blocks")


def test_the_table_in_readme_is_replaced_and_nothing_else() -> None:
    text = README.read_text()
    once = insert(text, iter(["| a table |"]))
    assert "\n| a table |\n" in once
    assert "relative to `cpu.idle`" not in once
    assert insert(once, iter(["| b |", "| c |"])).replace("| b |\n| c |", "| a table |") == once


def test_a_text_without_marks_is_refused() -> None:
    with pytest.raises(DemoError, match="lacks a line"):
        insert("# README\n", iter([]))
