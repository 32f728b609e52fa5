# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Samples from columns of counters: a thousand at first, then those of who moved.

Most of them stand still in most ticks: their samples stay the same objects, by which whoever
gets them knows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from controller.model import CgroupId, WorkloadSample
from controller.probes.slots import Member

__all__ = ("SampleRows", "make_samples")

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
