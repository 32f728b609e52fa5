# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Objectives, differences of pairs and verdicts, from blocks with known values."""

from dataclasses import replace
import math

import pytest

from tests.compare.record import ALONE
from tests.compare.results import (
    EQUAL,
    OURS,
    SCHED_IDLE,
    compare,
    objective_ms,
    overall,
    summarise,
    unusual,
)
from tests.unit.compare.made import BLOCK, blocks

OTHER_MIX = "memcached bursty + stream"


def test_the_objective_is_twice_that_alone_and_at_least_two_ms() -> None:
    assert objective_ms([BLOCK]) == 2.0
    alone = replace(BLOCK, policy=ALONE, p99_ms=(3.0, 4.0, 50.0))
    assert objective_ms([BLOCK, alone]) == 8.0


def test_a_difference_in_every_pair_is_shown_and_one_within_the_noise_is_not() -> None:
    ours = blocks(OURS, [10, 11, 9, 10, 10], [0, 1, 0, 0, 0])
    rule = blocks("rule", [5, 5.5, 4.4, 5, 5.2], [4, 5, 6, 4, 5], p99_ms=1.5)
    equal = blocks("equal", [11, 10, 10, 9, 10], [1, 0, 0, 0, 1])
    found = compare(ours + rule + equal, OURS, "rule")
    assert found is not None and (found.rows, found.pairs) == (1, 5)
    assert found.verdicts == dict.fromkeys(("p99", "violated", "work"), "better")
    assert found.p99[0] == pytest.approx(1 / 1.5)
    assert found.work[0] == pytest.approx(2.0, rel=0.05)
    assert found.violated[0] == pytest.approx(-0.23)
    found = compare(ours + rule + equal, OURS, "equal")
    assert found is not None and set(found.verdicts.values()) == {EQUAL}
    found = compare(ours + rule, "rule", OURS)
    assert found is not None and set(found.verdicts.values()) == {"worse"}


def test_the_verdict_is_that_of_the_interval_and_not_of_the_mean() -> None:
    ours = blocks(OURS, [10, 10, 10, 10, 40], [0] * 5)
    rule = blocks("rule", [10, 10, 10, 10, 10], [0] * 5)
    found = compare(ours + rule, OURS, "rule")
    assert found is not None and found.work[0] == pytest.approx(4**0.2)
    assert found.work[1] < 1 < found.work[2]
    assert found.verdicts["work"] == EQUAL


def test_equal_shares_have_the_interval_of_their_rounding() -> None:
    ours, rule = blocks(OURS, [10] * 5, [0] * 5), blocks("rule", [10] * 5, [0] * 5)
    found = compare(ours + rule, OURS, "rule")
    half = 2.776 * math.sqrt(1 / 6) / 20 / math.sqrt(5)
    assert found is not None and found.violated == pytest.approx((0.0, -half, half))


def test_only_rounds_with_both_are_pairs_and_one_pair_shows_nothing() -> None:
    ours, rule = blocks(OURS, [10, 10], [0, 0]), blocks("rule", [5, 5, 5], [0, 0, 0])
    found = compare(ours[1:] + rule, OURS, "rule")
    assert found is not None and found.pairs == 1
    assert set(found.verdicts.values()) == {EQUAL}
    assert found.work == (2.0, 0.0, math.inf)
    assert found.violated == (0.0, -1.0, 1.0)
    assert compare(rule, OURS, "rule") is None


def test_an_endless_p99_and_no_work_have_a_ratio() -> None:
    ours = blocks(OURS, [10, 10], [0, 0])
    rule = blocks("rule", [0, 0], [0, 0], p99_ms=math.inf)
    found = compare(ours + rule, OURS, "rule")
    assert found is not None
    assert found.p99 == pytest.approx((1e-4,) * 3)
    assert found.work == pytest.approx((1e4,) * 3)


def test_each_mix_counts_the_same_in_all_mixes_together() -> None:
    ours = blocks(OURS, [20, 20, 20, 20], [0] * 4)
    rule = blocks(SCHED_IDLE, [10, 10, 10, 10], [0] * 4)
    other = [replace(b, mix=OTHER_MIX, work=10.0) for b in (*ours[:2], *rule[:2])]
    one, back = overall([*ours, *rule, *other])
    assert (one.policy, one.against, one.rows, one.pairs) == (OURS, SCHED_IDLE, 2, 6)
    assert one.work[0] == pytest.approx(math.sqrt(2))
    assert (back.policy, back.against) == (SCHED_IDLE, OURS)
    assert back.work[0] == pytest.approx(math.sqrt(0.5))


def test_mixes_that_differ_do_not_widen_the_interval() -> None:
    ours = blocks(OURS, [40, 41, 39], [0] * 3)
    rule = blocks("rule", [10, 10, 10], [0] * 3)
    other = [replace(b, mix=OTHER_MIX, work=10.0) for b in ours + rule]
    found = compare(ours + rule + other, OURS, "rule")
    assert found is not None and found.work[1] > 1.9 and found.work[2] < 2.1


def test_work_is_relative_to_that_under_sched_idle() -> None:
    found = {each.policy: each for each in summarise([BLOCK, replace(BLOCK, policy=OURS, work=8)])}
    assert found[OURS].work == (0.8, 0.8, 0.8)


def test_blocks_far_from_the_median_of_their_row_are_found() -> None:
    row = blocks(OURS, [10, 10, 7, 10, 10], [0] * 5)
    row[0] = replace(row[0], p99_ms=(2.5,) * 20)
    row[3] = replace(row[3], p99_ms=(1.9,) * 20)
    same = blocks("rule", [1, 1, 1], [0] * 3, p99_ms=9.0)
    assert list(unusual(row + same)) == [(row[0], 2.5, 1.0), (row[2], 1.0, 0.7)]
