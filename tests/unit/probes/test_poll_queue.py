# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Active cgroups are due at once, all others within ten rounds, also while cgroups change."""

import itertools

from controller.core.model import CgroupId
from controller.probes.poll_queue import PollQueue

MANY = [CgroupId("v2", number) for number in range(40)]
ROUNDS = 10


def idle_queue() -> PollQueue:
    """Return a queue of inactive cgroups, none of them new."""
    made = PollQueue()
    made.set_cgroups(MANY)
    for _ in range(2 * ROUNDS):
        made.due()
    return made


def test_a_new_cgroup_is_due_in_the_next_round() -> None:
    made = idle_queue()
    made.set_cgroups([*MANY, *(new := [CgroupId("v2", number) for number in (50, 51)])])
    assert set(made.due()) >= set(new)


def test_an_active_cgroup_is_due_in_this_round_and_in_the_next() -> None:
    made = idle_queue()
    made.mark_active([MANY[7], MANY[8]])
    made.mark_active([MANY[9]])
    rounds = [made.due() for _ in range(3)]
    assert [sum(c in MANY[7:10] for c in each) >= 3 for each in rounds[:2]] == [True, True]
    assert len(rounds[2]) == len(MANY) // ROUNDS


def test_without_information_about_activity_all_cgroups_are_due() -> None:
    made = idle_queue()
    made.mark_active(None)
    assert sorted(made.due()) == MANY


def test_a_cgroup_that_is_not_set_is_never_due() -> None:
    made = idle_queue()
    made.mark_active([MANY[3], CgroupId("v2", 99)])
    made.set_cgroups(MANY[10:])
    assert set(made.due()) <= set(MANY[10:])


def test_every_cgroup_is_due_once_in_ten_rounds() -> None:
    made = idle_queue()
    rounds = [made.due() for _ in range(ROUNDS)]
    assert {len(each) for each in rounds} == {len(MANY) // ROUNDS}
    assert sorted(itertools.chain(*rounds)) == MANY


def test_added_and_removed_cgroups_do_not_delay_the_rotation_of_the_others() -> None:
    made, seen = idle_queue(), set()
    for number in range(2 * ROUNDS):
        made.set_cgroups([*MANY, CgroupId("v2", 100 + number)])
        seen |= set(made.due())
    assert seen >= set(MANY)


def test_a_number_of_cgroups_that_is_no_multiple_of_ten_leaves_none_out() -> None:
    made = PollQueue()
    made.set_cgroups(MANY[:33])
    made.due(), made.due()
    assert {c for _ in range(ROUNDS) for c in made.due()} == set(MANY[:33])
