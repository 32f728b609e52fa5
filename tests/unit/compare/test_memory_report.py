# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The file and the table of a comparison where memory is short."""

from dataclasses import replace
import math
from pathlib import Path

import pytest

from controller.demo.cgroups import DemoError
from tests.compare.__main__ import main
from tests.compare.memory.policies import OURS
from tests.compare.memory.record import MemoryBlock, MemoryRecord
from tests.compare.memory.report import lines, work_ratio
from tests.compare.record import Failure

BLOCK = MemoryBlock(
    mix="redis + hogs",
    policy=OURS,
    round=1,
    service_deaths=0,
    p99_ms=(1.0, 2.0, 3.0),
    unanswered=0,
    requests=1000,
    refaults=0,
    work_mib_s=80.0,
    job_deaths=4,
    evictions=0,
    load=2.0,
)
DEAD = replace(
    BLOCK,
    policy="none",
    service_deaths=3,
    p99_ms=(1.0, math.inf, math.inf),
    unanswered=500,
    work_mib_s=100.0,
)
PAGE = (
    "before\n<!-- begin: table of make compare --memory -->\n"
    "old\n<!-- end: table of make compare --memory -->\nafter\n"
)


@pytest.fixture
def record(tmp_path: Path) -> MemoryRecord:
    made = MemoryRecord(path=tmp_path / "memory.jsonl")
    made.begin({"kernel": "6.18"})
    for number in (1, 2):
        made.add(replace(BLOCK, round=number))
        made.add(replace(DEAD, round=number))
    made.add(replace(BLOCK, policy="none", round=3))
    made.add(Failure(mix="redis + hogs", policy=OURS, round=3, reason="no redis"))
    return made


def test_the_file_keeps_everything(record: MemoryRecord) -> None:
    assert MemoryRecord.load(record.path) == record


def test_blocks_of_other_conditions_are_not_continued(record: MemoryRecord) -> None:
    with pytest.raises(DemoError, match=r"its kernel is 6\.18, now it is 6\.19"):
        record.begin({"kernel": "6.19"})
    record.begin({"kernel": "6.18", "date": "today"})
    assert MemoryRecord.load(record.path).facts == {"kernel": "6.18", "date": "today"}


def test_a_file_of_another_comparison_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cpus.jsonl"
    path.write_text('{"mix": "nginx steady + ffmpeg", "policy": "none", "p99_ms": []}\n')
    with pytest.raises(DemoError, match="cannot read"):
        MemoryRecord.load(path)


def test_deaths_are_counted_by_block_and_in_all(record: MemoryRecord) -> None:
    text = "\n".join(lines(record))
    assert "which a later run repeats: 1," in text
    (none,) = (row for row in text.splitlines() if row.startswith("| none"))
    (ours,) = (row for row in text.splitlines() if row.startswith(f"| {OURS}"))
    cells = [cell.strip() for cell in none.split("|")]
    assert cells[2:4] == ["3", "2, 6"]
    assert cells[4] == "no answer (2.00 ms to no answer)"
    assert cells[5] == "33.3%"
    assert "| 2 | 0, 0 | 2.00 ms (2.00 ms to 2.00 ms) | 0.0% |" in ours


def test_work_is_compared_by_pairs_of_a_round(record: MemoryRecord) -> None:
    # The third round has no pair.
    assert work_ratio(record.blocks, "none", OURS) == pytest.approx((1.25, 1.25, 1.25))
    assert work_ratio(record.blocks, "katalyst", OURS) is None


def test_a_single_block_has_no_spread_and_no_interval(tmp_path: Path) -> None:
    one = MemoryRecord(path=tmp_path / "one.jsonl", blocks=[BLOCK, DEAD])
    (none,) = (row for row in lines(one) if row.startswith("| none"))
    assert none == "| none | 1 | 1, 3 | no answer | 50.0% | 0 | 100 | 1.25, one pair | 4 | 0 |"


def test_a_page_is_made_of_kept_blocks(record: MemoryRecord, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    options = ["--memory", "--render", "--blocks", str(record.path), "--output", str(page)]
    assert main(options) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("-->\nafter\n")
    assert "| none | 3 |" in text and "old" not in text


def test_a_policy_of_the_other_comparison_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--memory", "--policy", "sched-idle", "--blocks", str(tmp_path / "none")])
    assert "sched-idle is none of none, kubelet eviction" in capsys.readouterr().err
