# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Samples from columns of counters: a thousand in every tick, so without a call for each."""

from collections.abc import Collection, Iterable, Mapping
from itertools import repeat

from controller.model import CgroupId, WorkloadSample

__all__ = ("make_samples",)


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
