# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which workload has which slot in a probe's arrays, and what every tick needs to know of that.

Samples from columns of counters: a thousand at first, then those of who moved.

Most of them stand still in most ticks: their samples stay the same objects, by which whoever
gets them knows.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.core.model import CgroupId, WorkloadSample

__all__ = (
    "SLOT_IDLE",
    "SLOT_SYSTEM",
    "SLOT_UNKNOWN",
    "Member",
    "SampleRows",
    "Slots",
    "make_samples",
)

# bpf/include/cgroups.h
SLOT_SYSTEM, SLOT_IDLE, SLOT_UNKNOWN, _FIRST_SLOT = 0, 1, 2, 3
# A freed slot rests: a CPU that looked up its owner a moment ago may begin a run with it.
_REST_NS = 2_000_000_000

Indices = NDArray[np.int64]


class Member(NamedTuple):
    """A workload's slot and, if it is latency-sensitive, its latency record."""

    cgroup: CgroupId
    slot: int
    record: int | None


class View:
    """Everything derived from the members, computed at most once per change of them."""

    def __init__(self, members: tuple[Member, ...]) -> None:
        self.members = members
        self.sensitive = tuple(m for m in members if m.record is not None)
        self.others = tuple(m for m in members if m.record is None)
        self.used = 1 + max((m.slot for m in members), default=SLOT_UNKNOWN)
        self.rows = 1 + max((m.record for m in members if m.record is not None), default=-1)

    @cached_property
    def sensitive_slots(self) -> Indices:
        return np.array([member.slot for member in self.sensitive], np.int64)

    @cached_property
    def other_slots(self) -> Indices:
        return np.array([member.slot for member in self.others], np.int64)

    @cached_property
    def _places_by_slot(self) -> tuple[Indices, Indices]:
        """By slot: which of the sensitive ones, and which of the others; -1 is none of them."""
        places = np.full((2, self.used), -1, np.int64)
        places[0, self.sensitive_slots] = np.arange(len(self.sensitive))
        places[1, self.other_slots] = np.arange(len(self.others))
        return places[0], places[1]

    def places(self, slots: Indices) -> tuple[Indices, Indices]:
        """Return which of the sensitive ones have *slots*, and which of the others."""
        sensitive, others = (places[slots] for places in self._places_by_slot)
        return sensitive[sensitive >= 0], others[others >= 0]

    @cached_property
    def records(self) -> Indices:
        return np.array([member.record for member in self.sensitive], np.int64)

    @cached_property
    def victims(self) -> dict[int, CgroupId]:
        """Latency record: whose it is."""
        return {m.record: m.cgroup for m in self.sensitive if m.record is not None}

    @cached_property
    def culprits(self) -> dict[int, tuple[CgroupId | None, bool]]:
        """Slot: (who it is, whether it is known who), as ``model.Blame`` has it."""
        named: dict[int, tuple[CgroupId | None, bool]] = {
            SLOT_SYSTEM: (None, True),
            SLOT_UNKNOWN: (None, False),
        }
        return named | {member.slot: (member.cgroup, True) for member in self.members}


class Slots:
    """Hands out slots and latency records, and takes them back.

    :param slots: size of the kernel's arrays; the first three slots are the probe's own.
    :param records: latency records.
    """

    def __init__(self, slots: int, records: int) -> None:
        self._slots = _FreeList(range(_FIRST_SLOT, slots))
        self._records = _FreeList(range(records))
        self._members: dict[CgroupId, Member] = {}
        self._view: View | None = None

    @property
    def view(self) -> View:
        """What follows from the members; the same object until one comes or goes."""
        if self._view is None:
            self._view = View(tuple(self._members.values()))
        return self._view

    def __contains__(self, cgroup: CgroupId) -> bool:
        return cgroup in self._members

    def reserve(
        self, cgroup: CgroupId, *, latency: bool, now_ns: int, running: Container[int] = ()
    ) -> Member | None:
        """Return a place for *cgroup*, which ``add`` makes its own; ``None`` if all are taken.

        When only the latency records are taken, it goes without one. Slots that a CPU still is
        *running* are not handed out: what ends with that run is their last owner's.
        """
        slot = self._slots.take(now_ns, running)
        if slot is None:
            return None
        return Member(cgroup, slot, self._records.take(now_ns) if latency else None)

    def add(self, member: Member) -> None:
        """Count *member* in."""
        self._members[member.cgroup] = member
        self._view = None

    def remove(self, cgroup: CgroupId, *, now_ns: int) -> Member | None:
        """Count *cgroup* out and return what it was, if it was in; used again after a rest."""
        member = self._members.pop(cgroup, None)
        if member is None:
            return None
        self._slots.put(member.slot, now_ns + _REST_NS)
        if member.record is not None:
            self._records.put(member.record, now_ns + _REST_NS)
        self._view = None
        return member


class _FreeList:
    """Numbers to hand out; one given back can be taken again only after its rest."""

    def __init__(self, numbers: range) -> None:
        self._fresh = list(reversed(numbers))
        self._resting: list[tuple[int, int]] = []

    def take(self, now_ns: int, in_use: Container[int] = ()) -> int | None:
        """Return a rested number that is not *in_use*, the lowest fresh one, or None."""
        for index, (rested_ns, number) in enumerate(self._resting):
            if rested_ns > now_ns:
                break
            if number not in in_use:
                del self._resting[index]
                return number
        return self._fresh.pop() if self._fresh else None

    def put(self, number: int, rested_ns: int) -> None:
        """Take *number* back, usable from *rested_ns* on."""
        self._resting.append((rested_ns, number))


Rows = NDArray[np.intp]


def make_samples(
    cgroups: Collection[CgroupId], columns: Mapping[str, Iterable[object]]
) -> tuple[WorkloadSample, ...]:
    """Return one sample for each of *cgroups*; *columns* are its fields, by name and in its order.

    A field without a column is ``None``. Calling the class, or its ``_make``, takes up to four
    times as long as ``tuple.__new__``, which both end with.
    """
    nothing = (None,) * len(cgroups)
    fields = (columns.get(field, nothing) for field in WorkloadSample._fields[1:])
    rows = zip(cgroups, *fields, strict=True)
    return tuple(map(tuple.__new__, repeat(WorkloadSample), rows))


class SampleRows:
    """The samples of workloads, a row for each; made anew where something was counted.

    :param fields: returns the fields of the samples of some rows, a column for each.
    :param late: a row's fields may change a moment after it moved: it is looked at once more.

    ``anew`` are the rows that the last update looked at, ``changed`` those of which it made
    another sample.
    """

    def __init__(
        self, fields: Callable[[Rows], Mapping[str, Iterable[object]]], *, late: bool = False
    ) -> None:
        self._fields = fields
        self._late = late
        self._members: Sequence[Member] = ()
        self._samples: list[WorkloadSample] = []
        self._moved = np.zeros(0, np.bool_)
        self.anew: Rows = np.zeros(0, np.intp)
        self.changed: list[int] = []

    def update(self, members: Sequence[Member], moved: Rows) -> list[WorkloadSample]:
        """Return the samples of *members*, of whom the rows *moved* since the last update.

        The list is to be read at once: it is the same one next time.
        """
        moves = np.zeros(len(members), np.bool_)
        if members is not self._members:
            moves[self._rearrange(members)] = True
        moves[moved] = True
        (anew,) = (moves | self._moved if self._late else moves).nonzero()
        self.anew = anew
        self._moved = moves
        self.changed = []
        if not len(anew):
            return self._samples
        rows = anew.tolist()
        made = make_samples([members[row].cgroup for row in rows], self._fields(anew))
        for row, sample in zip(rows, made, strict=True):
            if sample != self._samples[row]:
                self._samples[row] = sample
                self.changed.append(row)
        return self._samples

    def _rearrange(self, members: Sequence[Member]) -> list[int]:
        """Keep what is known of those who stay; return the rows of the others."""
        before = {member: row for row, member in enumerate(self._members)}
        known = [before.get(member, -1) for member in members]
        nobody = WorkloadSample(CgroupId("", 0))
        self._samples = [self._samples[row] if row >= 0 else nobody for row in known]
        self._moved = np.append(self._moved, False)[known]
        self._members = members
        return [row for row, old in enumerate(known) if old < 0]
