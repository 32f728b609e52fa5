# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One sample per workload from what several probes measured."""

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import NamedTuple

from controller.model import CgroupId, WorkloadSample
from controller.probes.net import Traffic
from controller.probes.psi import Pressure
from controller.probes.resctrl import CacheUse
from controller.probes.samples import make_samples
from controller.probes.usage import Usage

__all__ = ("Table", "cache", "join", "pressure", "traffic", "usage")


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


def join(samples: Iterable[WorkloadSample], *tables: Table) -> tuple[WorkloadSample, ...]:
    """Return *samples* with the rows of *tables* put in, ``None`` where there is none.

    Whole columns are replaced: that costs half of what ``_replace`` does.
    """
    samples = tuple(samples)
    filled = [table for table in tables if table.rows]
    if not samples or not filled:
        return samples
    cgroups: tuple[CgroupId, ...]
    cgroups, *given = zip(*samples, strict=True)
    columns: dict[str, Iterable[object]] = dict(zip(WorkloadSample._fields[1:], given, strict=True))
    for fields, rows in filled:
        found = map(rows.get, cgroups, repeat((None,) * len(fields)))
        columns |= zip(fields, zip(*found, strict=True), strict=True)
    return make_samples(cgroups, columns)
