# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Slots of workloads in the kernel's arrays, and samples made from the counters of the slots.

``Slots`` assigns a slot to each workload, and a latency record to each latency-sensitive one.
``SampleRows`` makes samples from columns of counters. In most ticks most workloads have no new
counts; their samples stay the same objects, so that later stages can skip them by identity.
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
# A freed slot is not reused for 2 s: a CPU that looked up its owner just before may still begin a
# run with it.
_REUSE_AFTER_NS = 2_000_000_000

Indices = NDArray[np.int64]


class Member(NamedTuple):
    """A workload's slot and, if it is latency-sensitive, the index of its latency record.

    ``outside``: it is no workload, and counts as a culprit only.
    """

    cgroup: CgroupId
    slot: int
    record: int | None
    outside: bool = False


class View:
    """Tables derived from the members, each computed at most once per change of the members.

    ``sensitive`` are the members with a latency record, ``others`` the other workloads,
    ``outside`` the slots of what is no workload. ``slot_count`` and ``record_count`` are the
    lengths of the used parts of the kernel's arrays.
    """

    def __init__(self, members: tuple[Member, ...]) -> None:
        self.members = members
        self.sensitive = tuple(m for m in members if m.record is not None)
        self.others = tuple(m for m in members if m.record is None and not m.outside)
        self.outside = [m.slot for m in members if m.outside]
        self.slot_count = 1 + max((m.slot for m in members), default=SLOT_UNKNOWN)
        self.record_count = 1 + max((m.record for m in members if m.record is not None), default=-1)

    @cached_property
    def sensitive_slots(self) -> Indices:
        """Slots, in the order of ``sensitive``."""
        return np.array([member.slot for member in self.sensitive], np.int64)

    @cached_property
    def other_slots(self) -> Indices:
        """Slots, in the order of ``others``."""
        return np.array([member.slot for member in self.others], np.int64)

    @cached_property
    def _rows_by_slot(self) -> tuple[Indices, Indices]:
        """Slot -> index into ``sensitive``, and slot -> index into ``others``; -1: not in it."""
        rows = np.full((2, self.slot_count), -1, np.int64)
        rows[0, self.sensitive_slots] = np.arange(len(self.sensitive))
        rows[1, self.other_slots] = np.arange(len(self.others))
        return rows[0], rows[1]

    def rows_of(self, slots: Indices) -> tuple[Indices, Indices]:
        """Return the indices of *slots* in ``sensitive`` and in ``others``."""
        sensitive, others = (rows[slots] for rows in self._rows_by_slot)
        return sensitive[sensitive >= 0], others[others >= 0]

    @cached_property
    def records(self) -> Indices:
        """Latency records, in the order of ``sensitive``."""
        return np.array([member.record for member in self.sensitive], np.int64)

    @cached_property
    def victims(self) -> dict[int, CgroupId]:
        """Latency record -> workload."""
        return {m.record: m.cgroup for m in self.sensitive if m.record is not None}

    @cached_property
    def culprits(self) -> dict[int, tuple[CgroupId | None, bool]]:
        """Slot -> (workload, or None; whether the owner is known), as in ``model.Blame``."""
        named: dict[int, tuple[CgroupId | None, bool]] = {
            SLOT_SYSTEM: (None, True),
            SLOT_UNKNOWN: (None, False),
        }
        return named | {member.slot: (member.cgroup, True) for member in self.members}


class Slots:
    """Assigns slots and latency records to workloads.

    :param slots: size of the kernel's arrays; the first three slots are reserved by the probe.
    :param records: number of latency records.
    """

    def __init__(self, slots: int, records: int) -> None:
        self._slots = _FreeList(range(_FIRST_SLOT, slots))
        self._records = _FreeList(range(records))
        self._members: dict[CgroupId, Member] = {}
        self._view: View | None = None

    @property
    def view(self) -> View:
        """Tables of the members; the same object until a member is added or removed."""
        if self._view is None:
            self._view = View(tuple(self._members.values()))
        return self._view

    @property
    def free(self) -> int:
        """Number of slots without an owner, including those that are not reused yet."""
        return len(self._slots)

    def get(self, cgroup: CgroupId) -> Member | None:
        """Return the member of *cgroup*; ``None`` without a slot."""
        return self._members.get(cgroup)

    def reserve(
        self, cgroup: CgroupId, *, latency: bool, now_ns: int, running: Container[int] = ()
    ) -> Member | None:
        """Return a free slot for *cgroup*, to be confirmed by ``add``; ``None`` if all are taken.

        The member has no latency record if only the records are exhausted. Slots in *running* are
        not used: a CPU still runs them, and the end of that run is charged to the previous owner.
        """
        slot = self._slots.take(now_ns, running)
        if slot is None:
            return None
        return Member(cgroup, slot, self._records.take(now_ns) if latency else None)

    def reserve_record(self, member: Member, *, now_ns: int) -> Member | None:
        """Return *member* with a latency record, to be confirmed by ``add``, if one is free."""
        record = self._records.take(now_ns)
        return None if record is None else member._replace(record=record)

    def add(self, member: Member) -> None:
        """Add *member*, which ``reserve`` or ``reserve_record`` returned."""
        self._members[member.cgroup] = member
        self._view = None

    def remove(self, cgroup: CgroupId, *, now_ns: int) -> Member | None:
        """Remove *cgroup* and return its member, if any; its slot is reused after 2 s."""
        member = self._members.pop(cgroup, None)
        if member is None:
            return None
        self._slots.put(member.slot, now_ns + _REUSE_AFTER_NS)
        if member.record is not None:
            self._records.put(member.record, now_ns + _REUSE_AFTER_NS)
        self._view = None
        return member


class _FreeList:
    """Free numbers; a returned one is not handed out again before a given time."""

    def __init__(self, numbers: range) -> None:
        self._fresh = list(reversed(numbers))
        self._returned: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned)

    def take(self, now_ns: int, in_use: Container[int] = ()) -> int | None:
        """Return a returned number that is due and not *in_use*, else the lowest fresh one."""
        for index, (due_ns, number) in enumerate(self._returned):
            if due_ns > now_ns:
                break
            if number not in in_use:
                del self._returned[index]
                return number
        return self._fresh.pop() if self._fresh else None

    def put(self, number: int, due_ns: int) -> None:
        """Return *number*, to be used again from *due_ns* on."""
        self._returned.append((due_ns, number))


Rows = NDArray[np.intp]


def make_samples(
    cgroups: Collection[CgroupId], columns: Mapping[str, Iterable[object]]
) -> tuple[WorkloadSample, ...]:
    """Return one sample for each of *cgroups*.

    *columns* maps names of fields to values in the order of *cgroups*; a field without a column is
    ``None``. Built with ``tuple.__new__``, because calling the class or its ``_make``, which both
    end there, takes up to four times as long.
    """
    empty = (None,) * len(cgroups)
    fields = (columns.get(field, empty) for field in WorkloadSample._fields[1:])
    rows = zip(cgroups, *fields, strict=True)
    return tuple(map(tuple.__new__, repeat(WorkloadSample), rows))


class SampleRows:
    """The samples of some workloads, one row each; only rows with new counts are made again.

    ``refreshed`` are the rows whose fields the last update read, ``changed`` those of them that
    got a sample with other values.

    :param fields: returns the fields of the samples of some rows, a column for each field.
    :param late: fields may change shortly after the row's counters did, so a row is read once more
        in the update after its last count.
    """

    def __init__(
        self, fields: Callable[[Rows], Mapping[str, Iterable[object]]], *, late: bool = False
    ) -> None:
        self._fields = fields
        self._late = late
        self._members: Sequence[Member] = ()
        self._samples: list[WorkloadSample] = []
        self._was_active = np.zeros(0, np.bool_)
        self.refreshed: Rows = np.zeros(0, np.intp)
        self.changed: list[int] = []

    def update(self, members: Sequence[Member], active: Rows) -> list[WorkloadSample]:
        """Return the samples of *members*.

        :param active: the rows whose counters changed since the last update.
        :returns: a list that the next call modifies, so the caller must copy what it keeps.
        """
        is_active = np.zeros(len(members), np.bool_)
        if members is not self._members:
            is_active[self._rearrange(members)] = True
        is_active[active] = True
        (refreshed,) = (is_active | self._was_active if self._late else is_active).nonzero()
        self.refreshed = refreshed
        self._was_active = is_active
        self.changed = []
        if not len(refreshed):
            return self._samples
        rows = refreshed.tolist()
        samples = make_samples([members[row].cgroup for row in rows], self._fields(refreshed))
        for row, sample in zip(rows, samples, strict=True):
            if sample != self._samples[row]:
                self._samples[row] = sample
                self.changed.append(row)
        return self._samples

    def _rearrange(self, members: Sequence[Member]) -> list[int]:
        """Move the samples of known members to their new rows; return the rows of new ones."""
        row_of = {member: row for row, member in enumerate(self._members)}
        old_rows = [row_of.get(member, -1) for member in members]
        blank = WorkloadSample(CgroupId("", 0))
        self._samples = [self._samples[row] if row >= 0 else blank for row in old_rows]
        self._was_active = np.append(self._was_active, False)[old_rows]
        self._members = members
        return [row for row, old in enumerate(old_rows) if old < 0]
