# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Slots are handed out once, rest, and are not handed out while a CPU still runs them."""

from controller.core.model import CgroupId
from controller.probes.slots import Member, Slots

SECOND = 1_000_000_000


def cgroup(number: int) -> CgroupId:
    return CgroupId("v2", number)


def taken(slots: Slots, number: int, now_ns: int, running: set[int] | None = None) -> Member | None:
    member = slots.reserve(cgroup(number), latency=True, now_ns=now_ns, running=running or set())
    if member is not None:
        slots.add(member)
    return member


def test_a_slot_rests_before_it_is_used_again() -> None:
    slots = Slots(4, 1)
    first = taken(slots, 1, 0)
    assert first is not None
    assert taken(slots, 2, 0) is None
    assert slots.remove(cgroup(1), now_ns=5 * SECOND)
    assert taken(slots, 2, 6 * SECOND) is None
    again = taken(slots, 2, 8 * SECOND)
    assert again is not None
    assert (again.slot, again.record) == (first.slot, first.record)


def test_a_slot_that_a_cpu_runs_is_left_out() -> None:
    slots = Slots(5, 0)
    first, second = taken(slots, 1, 0), taken(slots, 2, 0)
    assert first is not None and second is not None
    slots.remove(cgroup(1), now_ns=0)
    slots.remove(cgroup(2), now_ns=0)
    other = taken(slots, 3, 10 * SECOND, {first.slot})
    assert other is not None and other.slot == second.slot
    assert taken(slots, 4, 10 * SECOND, {first.slot}) is None
    last = taken(slots, 4, 10 * SECOND)
    assert last is not None and last.slot == first.slot


def test_without_a_record_a_workload_still_has_a_slot() -> None:
    slots = Slots(5, 1)
    first, second = taken(slots, 1, 0), taken(slots, 2, 0)
    assert first is not None and first.record == 0
    assert second is not None and second.record is None
