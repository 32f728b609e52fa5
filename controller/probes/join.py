# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Joins the rows of several probes into one sample per workload."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from controller.core.model import CgroupId, WorkloadSample
from controller.probes.cgroup_usage import Usage
from controller.probes.disk import DiskUse
from controller.probes.memory_strain import Strain
from controller.probes.net import Traffic
from controller.probes.psi import Pressure
from controller.probes.resctrl import CacheUse
from controller.probes.slots import make_samples

__all__ = ("Join", "Table", "cache", "disks", "pressure", "strain", "traffic", "usage")

# A sample, and one row or None from each table.
_Parts = tuple[Any, ...]
# Workloads whose row changed since the last call; None: unknown, so any of them.
Changed = Collection[CgroupId] | None


class Table(NamedTuple):
    """The results of one probe: rows of the sample's *fields*, by workload."""

    fields: tuple[str, ...]
    rows: Mapping[CgroupId, tuple[object, ...]]
    changed: Changed


def traffic(rows: Mapping[CgroupId, Traffic], changed: Changed = None) -> Table:
    """Return the table of the network probes."""
    return Table(Traffic._fields, rows, changed)


def pressure(rows: Mapping[CgroupId, Pressure], changed: Changed = None) -> Table:
    """Return the table of the pressure of services."""
    fields = tuple(f"psi_{resource}_some_ns" for resource in Pressure._fields)
    return Table(fields, rows, changed)


def strain(rows: Mapping[CgroupId, Strain], changed: Changed = None) -> Table:
    """Return the table of what services lack memory for."""
    return Table(Strain._fields, rows, changed)


def usage(rows: Mapping[CgroupId, Usage], changed: Changed = None) -> Table:
    """Return the table of memory and disk usage."""
    return Table(Usage._fields, rows, changed)


def disks(rows: Mapping[CgroupId, DiskUse], changed: Changed = None) -> Table:
    """Return the table of the requests to disks."""
    return Table(DiskUse._fields, rows, changed)


def cache(rows: Mapping[CgroupId, CacheUse], changed: Changed = None) -> Table:
    """Return the table of the resctrl counters."""
    return Table(CacheUse._fields, rows, changed)


class Join:
    """Puts the rows of several tables into samples, in each tick.

    If neither a sample nor its rows changed, the result is the same object as in the last call,
    so that later stages can skip it by identity.
    """

    def __init__(self) -> None:
        self._fields: tuple[str, ...] = ()
        self._index: dict[CgroupId, int] = {}
        self._parts: list[_Parts] = []
        self._joined: list[WorkloadSample] = []

    def __call__(
        self, samples: Sequence[WorkloadSample], changed: Changed, *tables: Table
    ) -> tuple[WorkloadSample, ...]:
        """Return *samples* with the rows of *tables*; fields without a row are ``None``.

        :param changed: the workloads with another sample than in the last call. ``None``: the
            workloads themselves, or their order, may be others.
        """
        filled = [table for table in tables if table.rows]
        fields = tuple(field for table in filled for field in table.fields)
        known = [each for each in (changed, *(t.changed for t in filled)) if each is not None]
        if fields == self._fields and len(known) == 1 + len(filled):
            index = self._index
            to_check: Sequence[int] = [index[c] for c in {*chain(*known)} if c in index]
        else:
            self._rearrange([sample.cgroup for sample in samples], fields)
            to_check = range(len(samples))
        if filled:
            self._update([samples[i] for i in to_check], to_check, filled)
        return tuple(self._joined if filled else samples)

    def _update(
        self, samples: Sequence[WorkloadSample], indices: Iterable[int], tables: Sequence[Table]
    ) -> None:
        cgroups = [sample.cgroup for sample in samples]
        found = zip(samples, *(map(table.rows.get, cgroups) for table in tables), strict=True)
        # Equal tuples mostly hold identical objects, so the comparison is cheap.
        stale = [(i, new) for i, new in zip(indices, found, strict=True) if new != self._parts[i]]
        for (i, new), sample in zip(stale, _merge([p for _, p in stale], tables), strict=True):
            self._parts[i], self._joined[i] = new, sample

    def _rearrange(self, cgroups: list[CgroupId], fields: tuple[str, ...]) -> None:
        known: dict[CgroupId, tuple[_Parts, WorkloadSample]] = {}
        if fields == self._fields:
            rows = zip(self._parts, self._joined, strict=True)
            known = dict(zip(self._index, rows, strict=True))
        kept = [known.get(cgroup) or ((), WorkloadSample(cgroup)) for cgroup in cgroups]
        self._parts, self._joined = [parts for parts, _ in kept], [joined for _, joined in kept]
        self._index = {cgroup: i for i, cgroup in enumerate(cgroups)}
        self._fields = fields


def _merge(parts: Sequence[_Parts], tables: Iterable[Table]) -> tuple[WorkloadSample, ...]:
    if not parts:
        return ()
    samples, *rows_of_tables = zip(*parts, strict=True)
    cgroups: tuple[CgroupId, ...]
    cgroups, *values = zip(*samples, strict=True)
    # Replaces whole columns, at half of the cost of _replace for each sample.
    columns: dict[str, Iterable[object]] = dict(
        zip(WorkloadSample._fields[1:], values, strict=True)
    )
    for table, rows in zip(tables, rows_of_tables, strict=True):
        empty = (None,) * len(table.fields)
        filled = (empty if row is None else row for row in rows)
        columns |= zip(table.fields, zip(*filled, strict=True), strict=True)
    return make_samples(cgroups, columns)
