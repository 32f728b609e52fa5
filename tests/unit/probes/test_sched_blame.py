# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Blame pairs from the kernel's matrix: complete, not counted twice, same objects if unchanged."""

import numpy as np
from numpy.typing import NDArray

from controller.core.indicators.blame import blame_deltas
from controller.core.model import Blame, CgroupId
from controller.probes.sched_blame import BlamePairs
from controller.probes.slots import SLOT_SYSTEM, SLOT_UNKNOWN, Slots

WEB, API, BATCH, NEW = (CgroupId("cpu", number) for number in range(1, 5))


class Kernel:
    """The kernel's matrix, with the slots of its rows and columns."""

    def __init__(self) -> None:
        self.waits: NDArray[np.uint64] = np.zeros((4, 16), np.uint64)
        self.slots = Slots(16, 4)
        self.pairs = BlamePairs(self.waits)

    def assign(self, cgroup: CgroupId, latency: bool = False, now_ns: int = 0) -> None:
        member = self.slots.reserve(cgroup, latency=latency, now_ns=now_ns)
        assert member is not None
        self.pairs.rebase(member.slot, member.record)
        self.slots.add(member)

    def release(self, cgroup: CgroupId) -> None:
        member = self.slots.remove(cgroup, now_ns=0)
        assert member is not None
        self.pairs.remove(member.slot, member.record)

    def wait(self, victim: CgroupId, culprit: CgroupId | int, wait_ns: int) -> None:
        members = {member.cgroup: member for member in self.slots.view.members}
        slot = culprit if isinstance(culprit, int) else members[culprit].slot
        record = members[victim].record
        assert record is not None
        self.waits[record, slot] += np.uint64(wait_ns)

    def read(self, second: int = 1) -> tuple[Blame, ...]:
        return self.pairs.poll(self.slots.view, second * 10**9, self.slots.view.records)


def kernel() -> Kernel:
    made = Kernel()
    made.assign(WEB, latency=True)
    made.assign(API, latency=True)
    made.assign(BATCH)
    return made


def test_every_pair_by_name_in_the_order_of_appearance() -> None:
    made = kernel()
    assert made.read() == ()
    made.wait(API, BATCH, 5)
    assert made.read() == (Blame(API, BATCH, True, 5),)
    made.wait(WEB, BATCH, 7)
    made.wait(WEB, SLOT_UNKNOWN, 8)
    made.wait(WEB, SLOT_SYSTEM, 9)
    made.wait(API, BATCH, 1)
    first, *others = made.read()
    assert first == Blame(API, BATCH, True, 6)
    assert sorted(others, key=lambda pair: pair.wait_ns) == [
        Blame(WEB, BATCH, True, 7),
        Blame(WEB, None, False, 8),
        Blame(WEB, None, True, 9),
    ]


def test_an_unchanged_pair_is_the_same_object() -> None:
    made = kernel()
    made.wait(WEB, BATCH, 7)
    made.wait(API, BATCH, 7)
    before = made.read()
    made.wait(API, BATCH, 1)
    after = made.read()
    assert [old is new for old, new in zip(before, after, strict=True)] == [True, False]


def test_adding_and_removing_workloads_changes_no_other_pair() -> None:
    made = kernel()
    made.assign(NEW)
    made.wait(API, BATCH, 7)
    made.wait(WEB, NEW, 1)
    made.wait(WEB, BATCH, 7)
    pairs = {pair[:2]: pair for pair in made.read()}
    made.release(NEW)
    made.assign(CgroupId("cpu", 9), latency=True)
    after = made.read(2)
    assert {pair[:2] for pair in after} == {(API, BATCH), (WEB, BATCH)}
    assert all(pair is pairs[pair[:2]] for pair in after)


def test_a_new_workload_in_a_reused_slot_starts_at_zero() -> None:
    made = kernel()
    made.wait(WEB, BATCH, 7)
    made.wait(API, BATCH, 3)
    made.read()
    made.release(WEB)
    assert made.read() == (Blame(API, BATCH, True, 3),)
    # Late waits of the removed workload, before its record is assigned again.
    made.waits[0, :] += np.uint64(1000)
    made.assign(NEW, latency=True, now_ns=10**12)
    assert made.read() == (Blame(API, BATCH, True, 3),)
    made.wait(NEW, BATCH, 2)
    assert made.read() == (Blame(API, BATCH, True, 3), Blame(NEW, BATCH, True, 2))


def test_a_removed_culprit_is_not_listed() -> None:
    made = kernel()
    made.wait(WEB, BATCH, 7)
    made.wait(WEB, SLOT_SYSTEM, 1)
    made.read()
    made.release(BATCH)
    assert made.read(2) == (Blame(WEB, None, True, 1),)
    made.wait(WEB, SLOT_SYSTEM, 1)
    assert made.read(100) == (Blame(WEB, None, True, 2),)


def test_a_pair_that_does_not_grow_for_a_minute_is_dropped_and_starts_at_zero_again() -> None:
    made = kernel()
    for second in (1, 60):
        made.read(second)
    made.wait(WEB, SLOT_SYSTEM, 1)
    made.wait(WEB, BATCH, 7)
    made.wait(API, BATCH, 3)
    assert len(made.read(61)) == 3
    assert len(made.read(120)) == 3
    made.wait(API, BATCH, 1)
    assert len(made.read(121)) == 3
    left = made.read(180)
    assert left == (Blame(API, BATCH, True, 4),)
    made.wait(WEB, BATCH, 2)
    made.wait(API, BATCH, 1)
    back = (Blame(API, BATCH, True, 5), Blame(WEB, BATCH, True, 2))
    assert made.read(181) == back
    # The differences that the indicators compute: nothing is counted twice.
    assert blame_deltas(left, back) == [(API, BATCH, True, 1), (WEB, BATCH, True, 2)]
    assert made.read(240) == back
    assert made.read(300) == ()


def test_a_pair_that_grows_in_the_tick_of_the_dropping_keeps_its_growth() -> None:
    made = kernel()
    for second in (1, 60):
        made.read(second)
    made.wait(WEB, BATCH, 7)
    before = made.read(61)
    made.wait(WEB, BATCH, 2)
    after = made.read(120)
    assert blame_deltas(before, after) == [(WEB, BATCH, True, 2)]


def test_a_new_workload_starts_at_zero_while_idle_pairs_are_dropped() -> None:
    made = kernel()
    made.wait(WEB, BATCH, 7)
    made.wait(API, BATCH, 3)
    made.read(1)
    made.release(WEB)
    # Between two polls the record gets a new owner, and dropping idle pairs becomes due.
    made.waits[0, :] += np.uint64(1000)
    made.assign(NEW, latency=True, now_ns=10**12)
    assert made.read(200) == (Blame(API, BATCH, True, 3),)
    assert made.read(260) == ()
    made.wait(NEW, BATCH, 2)
    assert made.read(261) == (Blame(NEW, BATCH, True, 2),)
