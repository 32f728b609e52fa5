# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Samples from a table of counters: right, and the same objects where nothing moved."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controller.core.model import CgroupId, WorkloadSample
from controller.probes.slots import Member, SampleRows

ONE, TWO, THREE = (Member(CgroupId("cpu", number), 2 + number, None) for number in (1, 2, 3))
PAIR = (ONE, TWO)


class Rows:
    """SampleRows of a table that can be written; ``asked`` are the rows that were looked at."""

    def __init__(self, *, late: bool = False) -> None:
        self.table: Sequence[Sequence[int]] = ()
        self.asked: list[list[int]] = []
        self.rows = SampleRows(self._fields, late=late)

    def update(
        self, members: Sequence[Member], table: Sequence[Sequence[int]], *moved: int
    ) -> list[WorkloadSample]:
        self.table = table
        return [*self.rows.update(members, np.array(moved, np.intp))]

    def _fields(self, rows: NDArray[np.intp]) -> dict[str, list[int]]:
        self.asked.append(rows.tolist())
        counts = [self.table[row] for row in rows.tolist()]
        return {"oncpu_ns": [each[0] for each in counts], "waits": [each[1] for each in counts]}


def sample(member: Member, oncpu_ns: int, waits: int) -> WorkloadSample:
    return WorkloadSample(member.cgroup, oncpu_ns=oncpu_ns, waits=waits)


def test_who_moved_has_a_new_sample_and_the_others_the_old() -> None:
    rows = Rows()
    one, two = rows.update(PAIR, ((1, 2), (3, 4)))
    assert (one, two) == (sample(ONE, 1, 2), sample(TWO, 3, 4))
    after = rows.update(PAIR, ((1, 2), (3, 5)), 1)
    assert after[0] is one
    assert after[1] == sample(TWO, 3, 5)
    assert rows.rows.changed == [1]
    assert rows.update(PAIR, ((1, 2), (3, 5)))[1] is after[1]
    assert rows.rows.changed == []


def test_who_moved_to_where_he_was_keeps_his_sample() -> None:
    rows = Rows()
    one, _ = rows.update(PAIR, ((1, 2), (3, 4)))
    assert rows.update(PAIR, ((1, 2), (3, 4)), 0)[0] is one
    assert rows.rows.changed == []


def test_nobody_is_no_trouble() -> None:
    rows = Rows()
    assert rows.update((), ()) == []
    assert rows.update(PAIR, ((1, 2), (3, 4)))[0] == sample(ONE, 1, 2)
    assert rows.update((), ()) == []


def test_who_comes_and_goes_moves_nobody_elses_counters() -> None:
    rows = Rows()
    two = rows.update(PAIR, ((1, 2), (3, 4)))[1]
    after = rows.update((TWO, THREE), ((3, 4), (0, 0)))
    assert after[0] is two
    assert after[1] == sample(THREE, 0, 0)
    assert rows.update((THREE, ONE), ((0, 0), (5, 6)))[1] == sample(ONE, 5, 6)


def test_who_comes_back_to_another_slot_starts_anew() -> None:
    rows = Rows()
    rows.update(PAIR, ((1, 2), (3, 4)))
    again = Member(ONE.cgroup, 9, None)
    assert rows.update((again, TWO), ((0, 0), (3, 4)))[0] == sample(ONE, 0, 0)


def test_what_comes_late_is_read_once_more_after_the_last_move() -> None:
    rows = Rows(late=True)
    rows.update(PAIR, ((0, 0), (0, 1)))
    for table, moved in (((0, 1), ()), ((0, 1), ()), ((0, 2), (1,)), ((0, 3), ()), ((0, 3), ())):
        last = rows.update(PAIR, ((0, 0), table), *moved)[1]
    assert last == sample(TWO, 0, 3)
    assert rows.asked == [[0, 1], [0, 1], [1], [1]]
