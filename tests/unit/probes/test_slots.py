# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Slots are reused only when free and after a pause; samples are made again only where needed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controller.core.model import CgroupId, WorkloadSample
from controller.probes.slots import Member, SampleRows, Slots

SECOND = 1_000_000_000
ONE, TWO, THREE = (Member(CgroupId("cpu", number), 2 + number, None) for number in (1, 2, 3))
PAIR = (ONE, TWO)


def cgroup(number: int) -> CgroupId:
    return CgroupId("v2", number)


def take(slots: Slots, number: int, now_ns: int, running: set[int] | None = None) -> Member | None:
    member = slots.reserve(cgroup(number), latency=True, now_ns=now_ns, running=running or set())
    if member is not None:
        slots.add(member)
    return member


def test_a_freed_slot_is_reused_after_a_pause() -> None:
    slots = Slots(4, 1)
    first = take(slots, 1, 0)
    assert first is not None
    assert take(slots, 2, 0) is None
    assert slots.remove(cgroup(1), now_ns=5 * SECOND)
    assert take(slots, 2, 6 * SECOND) is None
    again = take(slots, 2, 8 * SECOND)
    assert again is not None
    assert (again.slot, again.record) == (first.slot, first.record)


def test_a_slot_that_a_cpu_runs_is_not_reused() -> None:
    slots = Slots(5, 0)
    first, second = take(slots, 1, 0), take(slots, 2, 0)
    assert first is not None and second is not None
    slots.remove(cgroup(1), now_ns=0)
    slots.remove(cgroup(2), now_ns=0)
    other = take(slots, 3, 10 * SECOND, {first.slot})
    assert other is not None and other.slot == second.slot
    assert take(slots, 4, 10 * SECOND, {first.slot}) is None
    last = take(slots, 4, 10 * SECOND)
    assert last is not None and last.slot == first.slot


def test_without_a_record_a_workload_still_has_a_slot() -> None:
    slots = Slots(5, 1)
    first, second = take(slots, 1, 0), take(slots, 2, 0)
    assert first is not None and first.record == 0
    assert second is not None and second.record is None


def test_a_workload_gets_a_record_that_another_one_returned() -> None:
    slots = Slots(6, 1)
    take(slots, 1, 0)
    second = take(slots, 2, 0)
    assert second is not None
    assert slots.reserve_record(second, now_ns=0) is None
    slots.remove(cgroup(1), now_ns=0)
    assert slots.reserve_record(second, now_ns=SECOND) is None
    assert slots.reserve_record(second, now_ns=2 * SECOND) == second._replace(record=0)


def test_freed_slots_count_as_free_before_they_are_reused() -> None:
    slots = Slots(5, 0)
    take(slots, 1, 0)
    assert slots.free == 1
    slots.remove(cgroup(1), now_ns=0)
    assert slots.free == 2


class Rows:
    """SampleRows over a table that the test sets; ``read`` are the rows read, per update."""

    def __init__(self, *, late: bool = False) -> None:
        self.table: Sequence[Sequence[int]] = ()
        self.read: list[list[int]] = []
        self.rows = SampleRows(self._fields, late=late)

    def update(
        self, members: Sequence[Member], table: Sequence[Sequence[int]], *active: int
    ) -> list[WorkloadSample]:
        self.table = table
        return [*self.rows.update(members, np.array(active, np.intp))]

    def _fields(self, rows: NDArray[np.intp]) -> dict[str, list[int]]:
        self.read.append(rows.tolist())
        counts = [self.table[row] for row in rows.tolist()]
        return {"oncpu_ns": [each[0] for each in counts], "waits": [each[1] for each in counts]}


def sample(member: Member, oncpu_ns: int, waits: int) -> WorkloadSample:
    return WorkloadSample(member.cgroup, oncpu_ns=oncpu_ns, waits=waits)


def test_an_active_row_gets_a_new_sample_and_the_others_keep_theirs() -> None:
    rows = Rows()
    one, two = rows.update(PAIR, ((1, 2), (3, 4)))
    assert (one, two) == (sample(ONE, 1, 2), sample(TWO, 3, 4))
    after = rows.update(PAIR, ((1, 2), (3, 5)), 1)
    assert after[0] is one
    assert after[1] == sample(TWO, 3, 5)
    assert rows.rows.changed == [1]
    assert rows.update(PAIR, ((1, 2), (3, 5)))[1] is after[1]
    assert rows.rows.changed == []


def test_an_active_row_with_equal_fields_keeps_its_sample() -> None:
    rows = Rows()
    one, _ = rows.update(PAIR, ((1, 2), (3, 4)))
    assert rows.update(PAIR, ((1, 2), (3, 4)), 0)[0] is one
    assert rows.rows.changed == []


def test_no_members_are_allowed() -> None:
    rows = Rows()
    assert rows.update((), ()) == []
    assert rows.update(PAIR, ((1, 2), (3, 4)))[0] == sample(ONE, 1, 2)
    assert rows.update((), ()) == []


def test_added_and_removed_members_change_no_other_sample() -> None:
    rows = Rows()
    two = rows.update(PAIR, ((1, 2), (3, 4)))[1]
    after = rows.update((TWO, THREE), ((3, 4), (0, 0)))
    assert after[0] is two
    assert after[1] == sample(THREE, 0, 0)
    assert rows.update((THREE, ONE), ((0, 0), (5, 6)))[1] == sample(ONE, 5, 6)


def test_a_member_that_returns_with_another_slot_is_read_again() -> None:
    rows = Rows()
    rows.update(PAIR, ((1, 2), (3, 4)))
    again = Member(ONE.cgroup, 9, None)
    assert rows.update((again, TWO), ((0, 0), (3, 4)))[0] == sample(ONE, 0, 0)


def test_a_late_field_is_read_once_more_after_the_last_activity() -> None:
    rows = Rows(late=True)
    rows.update(PAIR, ((0, 0), (0, 1)))
    for table, active in (((0, 1), ()), ((0, 1), ()), ((0, 2), (1,)), ((0, 3), ()), ((0, 3), ())):
        last = rows.update(PAIR, ((0, 0), table), *active)[1]
    assert last == sample(TWO, 0, 3)
    assert rows.read == [[0, 1], [0, 1], [1], [1]]
