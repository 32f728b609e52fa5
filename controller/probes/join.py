# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One sample per workload from what several probes measured."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
import operator
from typing import Any, NamedTuple

from controller.model import CgroupId, WorkloadSample
from controller.probes.net import Traffic
from controller.probes.psi import Pressure
from controller.probes.resctrl import CacheUse
from controller.probes.samples import make_samples
from controller.probes.usage import Usage

__all__ = ("Join", "Table", "cache", "pressure", "traffic", "usage")

# A sample, and one row or None from each table.
_Parts = tuple[Any, ...]


class Table(NamedTuple):
    """What one probe measured: rows of the sample's *fields* by workload."""

    fields: tuple[str, ...]
    rows: Mapping[CgroupId, tuple[int | None, ...]]


def traffic(rows: Mapping[CgroupId, Traffic]) -> Table:
    """Return what the network probes measured."""
    return Table(Traffic._fields, rows)


def pressure(rows: Mapping[CgroupId, Pressure]) -> Table:
    """Return the pressure of services."""
    return Table(tuple(f"psi_{resource}_some_ns" for resource in Pressure._fields), rows)


def usage(rows: Mapping[CgroupId, Usage]) -> Table:
    """Return memory and disk traffic."""
    return Table(Usage._fields, rows)


def cache(rows: Mapping[CgroupId, CacheUse]) -> Table:
    """Return what resctrl counted."""
    return Table(CacheUse._fields, rows)


class Join:
    """Puts the rows of several tables into samples, again and again.

    Where neither a sample nor its rows changed, what was made of them last is given again: the
    same object, by which whoever gets it knows that nothing happened.
    """

    def __init__(self) -> None:
        self._fields: tuple[str, ...] = ()
        self._cgroups: list[CgroupId] = []
        self._parts: list[_Parts] = []
        self._joined: list[WorkloadSample] = []

    def __call__(
        self, samples: Iterable[WorkloadSample], *tables: Table
    ) -> tuple[WorkloadSample, ...]:
        """Return *samples* with the rows of *tables* put in, ``None`` where there is none."""
        samples = tuple(samples)
        filled = [table for table in tables if table.rows]
        if not samples or not filled:
            return samples
        fields = tuple(field for table in filled for field in table.fields)
        cgroups = [sample.cgroup for sample in samples]
        if cgroups != self._cgroups or fields != self._fields:
            self._rearrange(cgroups, fields)
        parts = list(zip(samples, *(map(table.rows.get, cgroups) for table in filled), strict=True))
        # Equal tuples mostly hold the very same objects, so this costs little.
        anew = list(compress(range(len(parts)), map(operator.ne, parts, self._parts)))
        for row, sample in zip(anew, _put_in([parts[row] for row in anew], filled), strict=True):
            self._joined[row] = sample
        self._parts = parts
        return tuple(self._joined)

    def _rearrange(self, cgroups: list[CgroupId], fields: tuple[str, ...]) -> None:
        same = fields == self._fields
        rows = zip(self._cgroups, zip(self._parts, self._joined, strict=True), strict=True)
        known = dict(rows) if same else {}
        kept = [known.get(cgroup, ((), WorkloadSample(cgroup))) for cgroup in cgroups]
        self._parts, self._joined = [parts for parts, _ in kept], [joined for _, joined in kept]
        self._cgroups, self._fields = cgroups, fields


def _put_in(parts: Sequence[_Parts], tables: Iterable[Table]) -> tuple[WorkloadSample, ...]:
    if not parts:
        return ()
    samples, *found = zip(*parts, strict=True)
    cgroups: tuple[CgroupId, ...]
    cgroups, *given = zip(*samples, strict=True)
    # Whole columns are replaced: that costs half of what _replace does.
    columns: dict[str, Iterable[object]] = dict(zip(WorkloadSample._fields[1:], given, strict=True))
    for table, rows in zip(tables, found, strict=True):
        nothing = (None,) * len(table.fields)
        filled = (nothing if row is None else row for row in rows)
        columns |= zip(table.fields, zip(*filled, strict=True), strict=True)
    return make_samples(cgroups, columns)
