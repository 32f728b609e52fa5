# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Objectives, verdicts and the page of a comparison, from blocks with known values."""

from dataclasses import replace

import pytest

from tests.compare.blocks import ALONE, Block
from tests.compare.report import render
from tests.compare.results import OURS, compare, is_usable, objective_ms, summarise

MIX = "nginx steady + ffmpeg"
BLOCK = Block(
    mix=MIX,
    policy="sched-idle",
    round=1,
    p50_ms=0.5,
    p99_ms=(1.0,) * 20,
    failed=0,
    requests=1000,
    work=10.0,
    unit="frames",
    ls_cpus=0.2,
    be_cpus=1.5,
    writes=0,
    unaccounted_ratio=0.01,
    steal_ratio=0.0,
)


def blocks(policy: str, works: list[float], violated: list[int]) -> list[Block]:
    return [
        replace(
            BLOCK,
            policy=policy,
            round=number,
            work=work,
            p99_ms=(9.0,) * bad + (1.0,) * (20 - bad),
        )
        for number, (work, bad) in enumerate(zip(works, violated, strict=True), 1)
    ]


def test_the_objective_is_twice_that_alone_and_at_least_two_ms() -> None:
    assert objective_ms([BLOCK]) == 2.0
    alone = replace(BLOCK, policy=ALONE, p99_ms=(3.0, 4.0, 50.0))
    assert objective_ms([BLOCK, alone]) == 8.0


def test_a_difference_in_every_pair_is_shown_and_one_within_the_noise_is_not() -> None:
    ours = blocks(OURS, [10, 11, 9, 10, 10], [0, 1, 0, 0, 0])
    rule = blocks("rule", [5, 5.5, 4.4, 5, 5.2], [4, 5, 6, 4, 5])
    equal = blocks("equal", [11, 10, 10, 9, 10], [1, 0, 0, 0, 1])
    found = compare(ours + rule + equal, "rule")
    assert found is not None and found.pairs == 5
    assert found.verdicts == ("better", "better")
    assert found.work[0] == pytest.approx(2.0, rel=0.05)
    assert found.violated[0] == pytest.approx(-0.23)
    found = compare(ours + rule + equal, "equal")
    assert found is not None and found.verdicts == ("no difference shown",) * 2
    turned = [replace(b, policy={OURS: "rule", "rule": OURS}[b.policy]) for b in ours + rule]
    found = compare(turned, "rule")
    assert found is not None and found.verdicts == ("worse", "worse")


def test_only_rounds_with_both_are_pairs() -> None:
    ours, rule = blocks(OURS, [10, 10], [0, 0]), blocks("rule", [5, 5, 5], [0, 0, 0])
    found = compare(ours[1:] + rule, "rule")
    assert found is not None and found.pairs == 1
    assert compare(rule, "rule") is None


def test_blocks_with_wrong_accounts_are_counted_and_not_used() -> None:
    wrong = [replace(BLOCK, unaccounted_ratio=-0.06), replace(BLOCK, steal_ratio=0.06)]
    assert [is_usable(block) for block in (BLOCK, *wrong)] == [True, False, False]
    page = render([BLOCK, replace(BLOCK, policy=OURS, work=9.0), *wrong], {"machine": "2 CPUs"})
    assert "- blocks: 4, of which 2 are not used" in page
    assert f"| {MIX} | sched-idle | 1 | +0.0 [+0.0, +0.0]: no difference shown | 0.90" in page
    assert "- machine: 2 CPUs" in page


def test_work_is_relative_to_that_under_sched_idle() -> None:
    found = {each.policy: each for each in summarise([BLOCK, replace(BLOCK, policy=OURS, work=8)])}
    assert found[OURS].work == (0.8, 0.8, 0.8)
