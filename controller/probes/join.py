# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One sample per workload from what several probes measured."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from controller.core.model import CgroupId, WorkloadSample
from controller.probes.cgroup_usage import Usage
from controller.probes.net import Traffic
from controller.probes.psi import Pressure
from controller.probes.resctrl import CacheUse
from controller.probes.slots import make_samples

__all__ = ("Join", "Table", "cache", "pressure", "traffic", "usage")

# A sample, and one row or None from each table.
_Parts = tuple[Any, ...]
# Whose part is another one than in the last call; None: perhaps everybody's.
Changed = Collection[CgroupId] | None


class Table(NamedTuple):
    """What one probe measured: rows of the sample's *fields* by workload."""

    fields: tuple[str, ...]
    rows: Mapping[CgroupId, tuple[int | None, ...]]
    changed: Changed


def traffic(rows: Mapping[CgroupId, Traffic], changed: Changed = None) -> Table:
    """Return what the network probes measured."""
    return Table(Traffic._fields, rows, changed)


def pressure(rows: Mapping[CgroupId, Pressure], changed: Changed = None) -> Table:
    """Return the pressure of services."""
    fields = tuple(f"psi_{resource}_some_ns" for resource in Pressure._fields)
    return Table(fields, rows, changed)


def usage(rows: Mapping[CgroupId, Usage], changed: Changed = None) -> Table:
    """Return memory and disk traffic."""
    return Table(Usage._fields, rows, changed)


def cache(rows: Mapping[CgroupId, CacheUse], changed: Changed = None) -> Table:
    """Return what resctrl counted."""
    return Table(CacheUse._fields, rows, changed)


class Join:
    """Puts the rows of several tables into samples, again and again.

    Where neither a sample nor its rows changed, what was made of them last is given again: the
    same object, by which whoever gets it knows that nothing happened.
    """

    def __init__(self) -> None:
        self._fields: tuple[str, ...] = ()
        self._places: dict[CgroupId, int] = {}
        self._parts: list[_Parts] = []
        self._joined: list[WorkloadSample] = []

    def __call__(
        self, samples: Sequence[WorkloadSample], changed: Changed, *tables: Table
    ) -> tuple[WorkloadSample, ...]:
        """Return *samples* with the rows of *tables* put in, ``None`` where there is none.

        :param changed: whose of *samples* is another one; with ``None`` they may be of others
            than in the last call, or in another order.
        """
        filled = [table for table in tables if table.rows]
        fields = tuple(field for table in filled for field in table.fields)
        told = [each for each in (changed, *(t.changed for t in filled)) if each is not None]
        if fields == self._fields and len(told) == 1 + len(filled):
            places = self._places
            look_at: Sequence[int] = [places[c] for c in {*chain(*told)} if c in places]
        else:
            self._rearrange([sample.cgroup for sample in samples], fields)
            look_at = range(len(samples))
        if filled:
            self._join([samples[place] for place in look_at], look_at, filled)
        return tuple(self._joined if filled else samples)

    def _join(
        self, samples: Sequence[WorkloadSample], places: Iterable[int], tables: Sequence[Table]
    ) -> None:
        cgroups = [sample.cgroup for sample in samples]
        found = zip(samples, *(map(table.rows.get, cgroups) for table in tables), strict=True)
        # Equal tuples mostly hold the very same objects, so comparing costs little.
        anew = [
            (place, parts)
            for place, parts in zip(places, found, strict=True)
            if parts != self._parts[place]
        ]
        for (place, parts), sample in zip(anew, _put_in([p for _, p in anew], tables), strict=True):
            self._parts[place], self._joined[place] = parts, sample

    def _rearrange(self, cgroups: list[CgroupId], fields: tuple[str, ...]) -> None:
        known: dict[CgroupId, tuple[_Parts, WorkloadSample]] = {}
        if fields == self._fields:
            rows = zip(self._parts, self._joined, strict=True)
            known = dict(zip(self._places, rows, strict=True))
        kept = [known.get(cgroup) or ((), WorkloadSample(cgroup)) for cgroup in cgroups]
        self._parts, self._joined = [parts for parts, _ in kept], [joined for _, joined in kept]
        self._places = {cgroup: place for place, cgroup in enumerate(cgroups)}
        self._fields = fields


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
