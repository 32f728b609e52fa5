# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whose files are read: who moved, and everybody within ten rounds, whatever comes and goes."""

import itertools

from controller.core.model import CgroupId
from controller.probes.poll_queue import Turns

MANY = [CgroupId("v2", number) for number in range(40)]
ROUNDS = 10


def turns() -> Turns:
    """Turns of many who stand still, none of them new."""
    made = Turns()
    made.follow(MANY)
    for _ in range(2 * ROUNDS):
        made.take()
    return made


def test_who_is_new_is_next() -> None:
    made = turns()
    made.follow([*MANY, *(new := [CgroupId("v2", number) for number in (50, 51)])])
    assert set(made.take()) >= set(new)


def test_who_moved_is_in_this_round_and_in_the_next() -> None:
    made = turns()
    made.moved([MANY[7], MANY[8]])
    made.moved([MANY[9]])
    rounds = [made.take() for _ in range(3)]
    assert [sum(c in MANY[7:10] for c in each) >= 3 for each in rounds[:2]] == [True, True]
    assert len(rounds[2]) == len(MANY) // ROUNDS


def test_where_nobody_tells_who_moved_everybody_is_read() -> None:
    made = turns()
    made.moved(None)
    assert sorted(made.take()) == MANY


def test_who_is_not_followed_is_never_read() -> None:
    made = turns()
    made.moved([MANY[3], CgroupId("v2", 99)])
    made.follow(MANY[10:])
    assert set(made.take()) <= set(MANY[10:])


def test_everybody_has_his_turn_in_ten_rounds() -> None:
    made = turns()
    rounds = [made.take() for _ in range(ROUNDS)]
    assert {len(each) for each in rounds} == {len(MANY) // ROUNDS}
    assert sorted(itertools.chain(*rounds)) == MANY


def test_who_comes_and_goes_does_not_keep_the_others_from_having_theirs() -> None:
    made, seen = turns(), set()
    for number in range(2 * ROUNDS):
        made.follow([*MANY, CgroupId("v2", 100 + number)])
        seen |= set(made.take())
    assert seen >= set(MANY)


def test_a_number_that_is_no_multiple_of_ten_leaves_nobody_out() -> None:
    made = Turns()
    made.follow(MANY[:33])
    made.take(), made.take()
    assert {c for _ in range(ROUNDS) for c in made.take()} == set(MANY[:33])
