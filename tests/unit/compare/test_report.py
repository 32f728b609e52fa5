# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison, from blocks with known values."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.compare.policies import DEFAULT_POLICIES
from tests.compare.record import ALONE, Block, Failure, Record
from tests.compare.report import render
from tests.compare.results import OURS, SCHED_IDLE
from tests.unit.compare.made import BLOCK, MIX, blocks


def page(found: list[Block], failures: list[Failure] | None = None) -> str:
    record = Record(path=Path("unused"), facts={"kernel": "6.18"}, blocks=found)
    record.failures += failures or []
    return render(record, ("one.svg",))


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0].strip()


IDLE = blocks(SCHED_IDLE, [10, 11, 9, 10, 10], [0, 1, 0, 0, 0])
RULE = blocks("koordinator 65 %", [5, 5.5, 4.4, 5, 5.2], [4, 5, 6, 4, 5], p99_ms=1.5)


def test_conditions_pictures_and_blocks_that_were_thrown_away() -> None:
    wrong = [replace(BLOCK, unaccounted_ratio=0.06), replace(BLOCK, policy=OURS, steal_ratio=0.06)]
    reason = "OSError: no such cgroup"
    failure = Failure(mix=MIX, policy=OURS, round=2, reason=reason)
    text = page([*IDLE, *wrong], [failure, failure])
    assert "![p99 relative to alone, and work, by policy](one.svg)" in text
    conditions = section(text, "Conditions")
    assert "- kernel: 6.18" in conditions
    assert "- blocks: 5 used, 4 thrown away" in conditions
    assert "stolen (2), or a program or a rule that failed (2)" in conditions
    assert "- thrown away by policy: sweetpoint 3, sched-idle 1" in conditions
    assert f"- failed 2 times: {reason}" in conditions


def test_without_a_usable_block_there_is_no_page() -> None:
    with pytest.raises(ValueError, match="no usable block"):
        page([replace(BLOCK, steal_ratio=1.0)])


def test_where_ours_is_worse_is_said_with_numbers() -> None:
    ours = blocks(OURS, [8, 8.8, 7.2, 8, 8], [0, 1, 0, 0, 0])
    text = page([*IDLE, *RULE, *ours])
    worse = section(text, "Where sweetpoint is worse")
    assert worse == f"- {MIX}, than sched-idle: work 0.8 [0.8, 0.8]"
    # Worse in work is not as good, but there is nothing for which to take ours.
    assert f"- {MIX}: p99 1 [1, 1]" in section(text, "Where sched-idle alone is as good")
    verdicts = section(text, "Verdicts by mix")
    assert f"| {MIX} | sched-idle | 5 | 1 [1, 1] | +0.0 [-2.5, +2.5] | 0.8 [0.8, 0.8]: worse |" in (
        verdicts
    )
    assert f"| {MIX} | koordinator 65 % | 5 | 0.667 [0.667, 0.667]: better | -23.0 [" in verdicts


def test_what_is_worse_in_all_mixes_together_is_said_of_every_policy() -> None:
    ours = blocks(OURS, [8, 8.8, 7.2, 8, 8], [0, 1, 0, 0, 0], p99_ms=2.0)
    here = [*IDLE, *RULE, *ours]
    text = page([*here, *(replace(block, mix="redis steady + xz") for block in here)])
    worse = section(text, "Where sweetpoint is worse").splitlines()
    for policy in ("sched-idle", "koordinator 65 %"):
        assert any(
            line.startswith(f"- CPUs shared, together, than {policy}: p99") for line in worse
        )


def test_the_page_has_the_command_that_makes_it() -> None:
    command = "make compare ARGS=\"--policy 'sched-idle' --policy 'koordinator 65 %'\"\n"
    assert command in page([*IDLE, *RULE])
    usual = page([replace(BLOCK, policy=each) for each in DEFAULT_POLICIES])
    assert "    make compare\n" in usual
    assert "Without `ARGS`" not in usual


def test_where_ours_is_better_no_list_has_the_mix() -> None:
    ours = blocks(OURS, [10, 11, 9, 10, 10], [0, 1, 0, 0, 0], p99_ms=0.5)
    text = page([*IDLE, *RULE, *ours])
    none = "In no mix and than no policy was it shown to be worse."
    assert section(text, "Where sweetpoint is worse") == none
    assert "- none of the mixes" in section(text, "Where sched-idle alone is as good")


def test_mixes_together_are_compared_with_sched_idle_and_with_ours() -> None:
    ours = blocks(OURS, [10, 11, 9, 10, 10], [0, 1, 0, 0, 0])
    table = section(page([*RULE, *ours, *IDLE]), "Mixes together").splitlines()[2:]
    assert [row.split(" | ")[:5] for row in table] == [
        ["| CPUs shared", "koordinator 65 %", "sched-idle", "1", "5"],
        ["| CPUs shared", "sweetpoint", "sched-idle", "1", "5"],
        ["| CPUs shared", "sched-idle", "sweetpoint", "1", "5"],
        ["| CPUs shared", "koordinator 65 %", "sweetpoint", "1", "5"],
    ]


def test_a_mix_on_the_link_is_not_in_the_mean_of_those_on_cpus() -> None:
    ours = blocks(OURS, [8, 8.8, 7.2, 8, 8], [0, 1, 0, 0, 0])
    here = [*IDLE, *ours]
    other = [replace(block, mix="redis steady + xz") for block in here]
    far = [
        replace(
            block, mix="memcached-remote steady + upload", work=10 if block.policy == OURS else 8
        )
        for block in here
    ]
    text = page([*here, *other, *far])
    rows = [
        line.split(" | ") for line in section(text, "Mixes together").splitlines() if OURS in line
    ]
    found = {row[0]: (row[3], row[-1]) for row in rows if row[2] == SCHED_IDLE}
    assert found == {
        "| CPUs shared": ("2", "0.8 [0.8, 0.8]: worse |"),
        "| link shared": ("1", "1.25 [1.25, 1.25]: better |"),
    }
    worse = section(text, "Where sweetpoint is worse").splitlines()
    assert worse[0] == "- CPUs shared, together, than sched-idle: work 0.8 [0.8, 0.8]"
    assert len(worse) == 3


def test_verdicts_that_differ_from_an_earlier_run_are_listed() -> None:
    ours = blocks(OURS, [10, 11, 9, 10, 10], [0, 1, 0, 0, 0])
    less = blocks(OURS, [8, 8.8, 7.2, 8, 8], [0, 1, 0, 0, 0])
    facts = {"date": "yesterday", "commit": "abc"}
    before = Record(path=Path("unused"), facts=facts, blocks=[*IDLE, *RULE, *less])
    now = Record(path=Path("unused"), blocks=[*IDLE, *RULE, *ours])
    text = section(render(now, before=before), "An earlier run")
    assert "Blocks of yesterday, commit abc." in text
    rows = [line for line in text.splitlines() if line.startswith(f"| {MIX} |")]
    assert len(rows) == 1
    assert rows[0].startswith(f"| {MIX} | sweetpoint | sched-idle | work | 0.8 [")
    assert "worse | 1 [" in rows[0]
    assert rows[0].endswith("no difference shown |")
    # Of one mix, the mixes together say the same.
    assert text.count("| CPUs shared |") == 1
    assert "2 show a difference in one run only, and 0 are opposite." in text


def test_mixes_of_one_run_only_are_not_in_the_earlier_run() -> None:
    before = Record(path=Path("unused"), blocks=[*IDLE, *RULE])
    other = [replace(block, mix="redis steady + xz") for block in (*IDLE, *RULE)]
    now = Record(path=Path("unused"), blocks=[*IDLE, *RULE, *other])
    text = section(render(now, before=before), "An earlier run")
    assert "verdicts on the 1 mixes that both runs have" in text
    assert "redis" not in text


def test_an_unusual_block_is_listed_with_what_explains_it() -> None:
    ours = blocks(OURS, [10, 10, 5, 10, 10], [0] * 5)
    ours[2] = replace(
        ours[2],
        steal_ratio=0.04,
        writes=7,
        squeezes=3,
        lowest_quota_cpus=0.25,
        agent_ticks={"free": 40, "squeeze": 12, "hold": 0},
    )
    listed = section(page([*IDLE, *ours]), "Blocks far from the median of their row")
    assert listed.splitlines()[-1] == (
        f"| {MIX} | sweetpoint | 3 | 1.00 ms | 1.00 | 0.50 | 4.0% | 7 | 3 | 0.25 CPUs "
        "| free 40, squeeze 12 |"
    )
    assert "1 of 10 blocks" in listed
    assert "None" in section(page(IDLE), "Blocks far from the median of their row")


def test_each_mix_has_its_medians_with_their_spread() -> None:
    alone = blocks(ALONE, [0, 0], [0, 0], p99_ms=3.0)
    rows = section(page([*IDLE, *alone]), MIX)
    assert "Objective 6.00 ms; the service used 0.20 CPUs." in rows
    assert (
        "| sched-idle | 5 | 0.50 ms | 1.00 ms (1.00 ms to 1.00 ms) | 0% (0% to 5%) "
        "| 1.00 (0.90 to 1.10) | 1.50 |"
    ) in rows
    assert rows.splitlines()[-2].endswith("| 0% (0% to 0%) | - | 1.50 |")
