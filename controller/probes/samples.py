# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Samples from columns of counters: a thousand in every tick, so without a call for each.

And in most ticks most of them stand still: their samples stay the same objects, by which whoever
gets them knows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from controller.model import CgroupId, WorkloadSample

__all__ = ("SampleRows", "make_samples")

# What is too large for a column: further fields of the rows with these numbers.
More = Callable[[NDArray[np.intp]], Mapping[str, Iterable[object]]]


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
    """Samples from a table of counters, a row for each workload; made anew where one changed.

    :param more: returns further fields, which change only with a counter of their row, or a
        moment later.

    ``anew`` are the rows that the last update looked at.
    """

    def __init__(self, more: More | None = None) -> None:
        self._more = more
        self._cgroups: Sequence[CgroupId] = ()
        self._fields: tuple[str, ...] = ()
        self._counts = np.zeros((0, 0), np.int64)
        self._samples: list[WorkloadSample] = []
        self._moved = np.zeros(0, np.bool_)
        self.anew = np.zeros(0, np.intp)

    def update(
        self, cgroups: Sequence[CgroupId], fields: tuple[str, ...], counts: NDArray[np.int64]
    ) -> list[WorkloadSample]:
        """Return the samples of *cgroups*, whose rows of *counts* have a column for each field.

        The list is to be read at once: it is the same one next time.
        """
        if cgroups is not self._cgroups or fields != self._fields:
            self._rearrange(cgroups, fields)
        moves = (counts != self._counts).any(axis=1)
        anew = self.anew = np.flatnonzero(moves | self._moved)
        self._counts, self._moved = counts, moves
        columns: dict[str, Iterable[object]] = dict(
            zip(fields, counts[anew].T.tolist(), strict=True)
        )
        if self._more is not None and len(anew):
            columns |= self._more(anew)
        rows = anew.tolist()
        for row, sample in zip(
            rows, make_samples([cgroups[row] for row in rows], columns), strict=True
        ):
            self._samples[row] = sample
        return self._samples

    def _rearrange(self, cgroups: Sequence[CgroupId], fields: tuple[str, ...]) -> None:
        """Keep what is known of those who stay; -1 is no count, so the others are new."""
        if fields != self._fields:
            self._cgroups, self._fields = (), fields
            self._counts = np.zeros((0, len(fields)), np.int64)
            self._moved = np.zeros(0, np.bool_)
        before = {cgroup: row for row, cgroup in enumerate(self._cgroups)}
        known = np.array([before.get(cgroup, -1) for cgroup in cgroups], np.intp)
        nothing = np.full((1, len(fields)), -1, np.int64)
        self._counts = np.concatenate((self._counts, nothing))[known]
        self._moved = np.append(self._moved, False)[known]
        nobody = WorkloadSample(CgroupId("", 0))
        self._samples = [self._samples[row] if row >= 0 else nobody for row in known.tolist()]
        self._cgroups = cgroups
