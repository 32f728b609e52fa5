# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whose files are read: who moved, and everybody within ten rounds, whatever comes and goes."""

import itertools

from controller.core.model import CgroupId
from controller.probes.poll_queue import PollQueue

MANY = [CgroupId("v2", number) for number in range(40)]
ROUNDS = 10


def turns() -> PollQueue:
    """Turns of many who stand still, none of them new."""
    made = PollQueue()
    made.set_cgroups(MANY)
    for _ in range(2 * ROUNDS):
        made.due()
    return made


def test_who_is_new_is_next() -> None:
    made = turns()
    made.set_cgroups([*MANY, *(new := [CgroupId("v2", number) for number in (50, 51)])])
    assert set(made.due()) >= set(new)


def test_who_moved_is_in_this_round_and_in_the_next() -> None:
    made = turns()
    made.mark_active([MANY[7], MANY[8]])
    made.mark_active([MANY[9]])
    rounds = [made.due() for _ in range(3)]
    assert [sum(c in MANY[7:10] for c in each) >= 3 for each in rounds[:2]] == [True, True]
    assert len(rounds[2]) == len(MANY) // ROUNDS


def test_where_nobody_tells_who_moved_everybody_is_read() -> None:
    made = turns()
    made.mark_active(None)
    assert sorted(made.due()) == MANY


def test_who_is_not_followed_is_never_read() -> None:
    made = turns()
    made.mark_active([MANY[3], CgroupId("v2", 99)])
    made.set_cgroups(MANY[10:])
    assert set(made.due()) <= set(MANY[10:])


def test_everybody_has_his_turn_in_ten_rounds() -> None:
    made = turns()
    rounds = [made.due() for _ in range(ROUNDS)]
    assert {len(each) for each in rounds} == {len(MANY) // ROUNDS}
    assert sorted(itertools.chain(*rounds)) == MANY


def test_who_comes_and_goes_does_not_keep_the_others_from_having_theirs() -> None:
    made, seen = turns(), set()
    for number in range(2 * ROUNDS):
        made.set_cgroups([*MANY, CgroupId("v2", 100 + number)])
        seen |= set(made.due())
    assert seen >= set(MANY)


def test_a_number_that_is_no_multiple_of_ten_leaves_nobody_out() -> None:
    made = PollQueue()
    made.set_cgroups(MANY[:33])
    made.due(), made.due()
    assert {c for _ in range(ROUNDS) for c in made.due()} == set(MANY[:33])
