# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Counters of workloads in a hierarchy that may be another than that of the cpu controller.

A BPF program counts for cgroups whose ids are in a map. In another hierarchy than that of the cpu
controller, a workload's cgroup is the one with the same path; a workload without one is not
measured.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import repeat
import math
import os
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.core.model import CgroupId, Workload
from controller.core.units import NS_PER_SEC
from controller.probes.bpf.libbpf import HashMap
from controller.workloads.changes import diff_workloads

__all__ = ("TreeCounters",)

# Differs from every real count, so that a new member gets a row in the next poll.
_UNKNOWN = np.iinfo(np.uint64).max
_SCAN_NS = 5 * NS_PER_SEC
# Number of ticks over which a scan of all directories is spread.
_SCAN_PARTS = 20

_Row = TypeVar("_Row", bound=tuple[int, ...])


class _Member(NamedTuple):
    cgroup_id: int
    slot: int
    mark: int


def _no_mark(_workload: Workload) -> int:
    return 0


class TreeCounters(Generic[_Row]):
    """The counters of workloads in one hierarchy, of which a BPF program counts.

    ``changed`` are the workloads whose counters the last ``poll`` found changed, or which it no
    longer returned.

    :param mount: the mount of the hierarchy.
    :param hierarchy: its name as in ``CgroupId``.
    :param places: the program's map from the id of a cgroup to its slot and its mark.
    :param table: the program's counters, by region, slot and column. Regions are added.
    :param row: what ``poll`` returns of a workload, one field per column.
    :param mark: what the program has to know of a workload beside its slot.
    """

    def __init__(
        self,
        mount: str,
        hierarchy: str,
        places: HashMap,
        table: NDArray[np.uint64],
        row: type[_Row],
        mark: Callable[[Workload], int] = _no_mark,
    ) -> None:
        self._mount, self._hierarchy = mount, hierarchy
        self._places, self._table, self._row, self._mark = places, table, row, mark
        _, slots, columns = table.shape
        self._workloads: tuple[Workload, ...] = ()
        self._paths: dict[CgroupId, str] = {}
        self._marks: dict[CgroupId, int] = {}
        self._members: dict[CgroupId, _Member] = {}
        # Of the members: cgroups, slots, and counters at assignment, in the same order.
        self._cgroups: list[CgroupId] = []
        self._slots = np.zeros(0, np.int64)
        self._bases = np.zeros((0, columns), np.uint64)
        self._base_of_slot = np.zeros((slots, columns), np.uint64)
        self._waiting: dict[CgroupId, None] = {}  # for a free slot
        # First in, first out, so that a freed slot is reused as late as possible.
        self._free = deque(range(slots))
        # Counts since assignment as of the last poll, by slot and as rows by workload.
        self._grown = np.zeros((slots, columns), np.uint64)
        self._rows: dict[CgroupId, _Row] = {}
        self._removed: list[CgroupId] = []
        self.changed: Collection[CgroupId] = ()
        self._ids: dict[CgroupId, int | None] = {}
        # Rest of the running scan: parent directories with the workloads by the child's name.
        self._to_scan: list[tuple[str, dict[str, CgroupId]]] = []
        self._per_tick = 0
        self._scan_due_ns = 0

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Count for *workloads* from now on, and for no others."""
        before, self._workloads = self._workloads, tuple(workloads)
        change = diff_workloads(before, self._workloads).by_fields("cgroup", "path", "qos")
        if not (change.added or change.removed):
            return
        for workload in change.removed:
            cgroup = workload.cgroup
            del self._paths[cgroup], self._ids[cgroup], self._marks[cgroup]
        # Directories of known workloads are checked by the scan.
        for workload in change.added:
            self._paths[workload.cgroup] = workload.path
            self._marks[workload.cgroup] = self._mark(workload)
            self._ids[workload.cgroup] = self._id_of(workload)
        self._update_members(w.cgroup for w in (*change.removed, *change.added))

    def poll(self, now_ns: int) -> Mapping[CgroupId, _Row]:
        """Return the counters of all workloads that have a cgroup in the hierarchy.

        New and recreated directories are found within five seconds, and start at zero then.
        """
        self._scan(now_ns)
        used = self._slots.max(initial=-1) + 1
        totals = self._table[:, :used].sum(axis=0, dtype=np.uint64)
        grown = totals[self._slots] - self._bases
        (changed,) = (grown != self._grown[self._slots]).any(axis=1).nonzero()
        self._grown[self._slots[changed]] = grown[changed]
        cgroups = [self._cgroups[row] for row in changed.tolist()]
        rows = map(tuple.__new__, repeat(self._row), grown[changed].tolist())
        self._rows |= zip(cgroups, rows, strict=True)
        self.changed, self._removed = (*self._removed, *cgroups), []
        return self._rows

    def _scan(self, now_ns: int) -> None:
        """Update the members from the present directories, a part of them in each tick.

        A workload of this hierarchy is its own directory. Where all are, nothing is scanned.
        """
        if not self._to_scan and now_ns >= self._scan_due_ns:
            self._scan_due_ns = now_ns + _SCAN_NS
            self._to_scan = self._by_parent()
            self._per_tick = math.ceil(len(self._to_scan) / _SCAN_PARTS)
        due, self._to_scan = self._to_scan[: self._per_tick], self._to_scan[self._per_tick :]
        found: dict[CgroupId, int | None] = {}
        for parent, cgroups in due:
            children = _children(self._mount + parent)
            for name, cgroup in cgroups.items():
                if self._paths.get(cgroup) == f"{parent}/{name}":
                    found[cgroup] = children.get(name)
        if any(self._ids.get(cgroup) != cgroup_id for cgroup, cgroup_id in found.items()):
            self._ids |= found
            self._update_members(found)

    def _update_members(self, changed: Iterable[CgroupId]) -> None:
        """Remove and add members according to ``_ids``; waiting workloads come first."""
        changed = dict.fromkeys(changed)
        for cgroup in changed:
            member = self._members.get(cgroup)
            if member is not None and self._ids.get(cgroup) != member.cgroup_id:
                del self._members[cgroup]
                self._rows.pop(cgroup, None)
                self._removed.append(cgroup)
                self._places.delete(member.cgroup_id)
                self._free.append(member.slot)
        for cgroup in self._waiting | changed:
            self._add_member(cgroup)
        self._cgroups = list(self._members)
        self._slots = np.array([m.slot for m in self._members.values()], np.int64)
        self._bases = self._base_of_slot[self._slots]

    def _add_member(self, cgroup: CgroupId) -> None:
        cgroup_id = self._ids.get(cgroup)
        self._waiting.pop(cgroup, None)
        if cgroup_id is None:
            return
        member = self._members.get(cgroup)
        if member is None:
            if not self._free:
                self._waiting[cgroup] = None
                return
            slot = self._free.popleft()
            self._base_of_slot[slot] = self._table[:, slot].sum(axis=0, dtype=np.uint64)
            self._grown[slot] = _UNKNOWN
        elif member.mark == self._marks[cgroup]:
            return
        else:
            slot = member.slot
        member = self._members[cgroup] = _Member(cgroup_id, slot, self._marks[cgroup])
        self._places.set(*member)

    def _id_of(self, workload: Workload) -> int | None:
        if workload.cgroup.hierarchy == self._hierarchy:
            return workload.cgroup.id
        try:
            return os.stat(self._mount + workload.path).st_ino  # noqa: PTH116 - half of Path's time
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _by_parent(self) -> list[tuple[str, dict[str, CgroupId]]]:
        """Return (parent directory, workload by name) of all workloads of other hierarchies."""
        parents: dict[str, dict[str, CgroupId]] = {}
        for cgroup, path in self._paths.items():
            parent, _, name = path.rpartition("/")
            if cgroup.hierarchy != self._hierarchy and name:
                parents.setdefault(parent, {})[name] = cgroup
        return list(parents.items())


def _children(directory: str) -> dict[str, int]:
    """Return the inode numbers of the entries of *directory*, in a tenth of the time of stats."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.inode() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}
