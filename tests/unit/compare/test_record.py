# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The file of blocks: what is written is read, and a run can be continued."""

from dataclasses import replace
import math
from pathlib import Path

import pytest

from controller.demo.cgroups import DemoError
from tests.compare.record import ALONE, Failure, Record, is_usable
from tests.unit.compare.made import BLOCK, MIX

FACTS = {"kernel": "6.18", "date": "today"}
FAILURE = Failure(mix=MIX, policy="katalyst", round=1, reason="OSError: no such cgroup")


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "blocks.jsonl"
    record = Record.start(path, FACTS)
    squeezed = replace(
        BLOCK, p99_ms=(1.0, math.inf), lowest_quota_cpus=0.3, agent_ticks={"squeeze": 4}
    )
    for result in (BLOCK, FAILURE, squeezed):
        record.add(result)
    found = Record.load(path)
    assert found == record
    assert found.blocks == [BLOCK, squeezed]
    assert found.failures == [FAILURE]


def test_wrong_accounts_steal_and_no_windows_are_not_usable() -> None:
    assert is_usable(BLOCK)
    for wrong in (
        replace(BLOCK, unaccounted_ratio=-0.06),
        replace(BLOCK, unaccounted_ratio=0.06),
        replace(BLOCK, steal_ratio=0.06),
        replace(BLOCK, p99_ms=()),
    ):
        assert not is_usable(wrong)


def test_only_usable_blocks_are_done_and_they_are_in_the_order_of_the_policies(
    tmp_path: Path,
) -> None:
    record = Record.start(tmp_path / "blocks.jsonl", FACTS)
    record.add(BLOCK)
    record.add(replace(BLOCK, policy="none", steal_ratio=0.5))
    record.add(replace(BLOCK, policy=ALONE))
    record.add(FAILURE)
    assert record.done == {(MIX, "sched-idle", 1), (MIX, ALONE, 1)}
    assert [block.policy for block in record.usable] == [ALONE, "sched-idle"]


def test_a_new_run_keeps_the_blocks_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "blocks.jsonl"
    Record.start(path, FACTS).add(BLOCK)
    assert Record.start(path, FACTS).blocks == []
    assert Record.load(path).blocks == []
    assert Record.load(tmp_path / "blocks.jsonl.old").blocks == [BLOCK]


def test_a_run_is_continued_under_the_same_conditions_only(tmp_path: Path) -> None:
    path = tmp_path / "blocks.jsonl"
    Record.start(path, FACTS).add(BLOCK)
    record = Record.load(path)
    record.resume(FACTS | {"date": "tomorrow"}, ["kernel"])
    record.add(FAILURE)
    found = Record.load(path)
    assert found.facts == {"kernel": "6.18", "date": "today, then tomorrow"}
    assert (found.blocks, found.failures) == ([BLOCK], [FAILURE])
    with pytest.raises(DemoError, match=r"its kernel is 6\.18, now it is 6\.19"):
        found.resume({"kernel": "6.19"}, ["kernel"])


@pytest.mark.parametrize("text", ["{", '{"mix": "of another version"}', "[]"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "blocks.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(DemoError, match="cannot read blocks"):
        Record.load(path)
    with pytest.raises(DemoError, match="cannot read blocks"):
        Record.load(tmp_path / "missing")
