# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""IP bytes and packets per workload in both directions, from ``bpf/net.bpf.c``.

Packets belong to cgroups of the cgroup2 tree. If the cpu controller is on v1, a workload's
cgroup2 directory is the one with the same path; a workload without one is not measured. A packet
is counted as IP passes it on: with segmentation offload it has up to 64 KiB and its headers count
once, so the wire carries up to 4 % more.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
import math
import os
from typing import NamedTuple

import numpy as np

from controller.core.model import CgroupId, Workload
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import diff_workloads
from controller.host.facts import CgroupLayout, HostError, find_cgroup_layout, possible_cpus
from controller.probes.bpf.libbpf import HashMap, RunTime, run_time
from controller.probes.bpf.loader import LoadError, ProgramSpec, load
from controller.probes.bpf.mapped_array import MappedArray

__all__ = ("NetProbe", "Traffic", "trial")

_INGRESS, _EGRESS = 0, 1  # enum bpf_attach_type: BPF_CGROUP_INET_INGRESS, BPF_CGROUP_INET_EGRESS
_TRAFFIC = np.dtype([("count", "u8", 4)])
# Differs from every real count, so that a new member gets a row in the next poll.
_UNKNOWN = np.iinfo(np.uint64).max
_SCAN_NS = 5 * NS_PER_SEC
# Number of ticks over which a scan of all directories is spread.
_SCAN_PARTS = 20


class Traffic(NamedTuple):
    """IP traffic that a workload sent and received since it was assigned."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int


@dataclass(frozen=True, slots=True)
class _Member:
    cgroup2_id: int
    slot: int


class NetProbe:
    """The loaded probe.

    ``changed`` are the workloads whose counters the last ``poll`` found changed, or which it no
    longer returned.

    :param layout: gives the mount of the cgroup2 tree.
    :param cpus: possible CPUs of the machine.
    :param max_slots: maximum number of workloads; further ones wait for a free slot.
    :raises LoadError: there is no cgroup2 tree, or the program cannot be loaded or attached.
    """

    def __init__(self, layout: CgroupLayout, *, cpus: int, max_slots: int = 1024) -> None:
        if layout.unified is None:
            raise LoadError(
                "no cgroup2 tree is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
            )
        self._unified = str(layout.unified)
        self._loaded = load(
            ProgramSpec(
                source="net.bpf.c",
                defines={"NCPU": cpus, "MAX_SLOTS": max_slots},
                maps=("slot_of_cgroup", "traffic"),
                cgroup_skb={"count_tx": _EGRESS, "count_rx": _INGRESS},
                cgroup=str(layout.unified),
                typed=False,
            )
        )
        traffic = MappedArray(self._loaded.map_fds["traffic"], _TRAFFIC, cpus * max_slots)
        self._traffic = traffic.values["count"].reshape(cpus, max_slots, 4)
        self._slot_of_cgroup = HashMap(self._loaded.map_fds["slot_of_cgroup"])
        self._workloads: tuple[Workload, ...] = ()
        self._paths: dict[CgroupId, str] = {}
        self._members: dict[CgroupId, _Member] = {}
        # Of the members: cgroups, slots, and counters at assignment, in the same order.
        self._cgroups: list[CgroupId] = []
        self._slots = np.zeros(0, np.int64)
        self._bases = np.zeros((0, 4), np.uint64)
        self._base_of_slot = np.zeros((max_slots, 4), np.uint64)
        self._waiting: dict[CgroupId, None] = {}  # for a free slot
        # First in, first out, so that a freed slot is reused as late as possible.
        self._free = deque(range(max_slots))
        # Counts since assignment as of the last poll, by slot and as rows by workload.
        self._grown = np.zeros((max_slots, 4), np.uint64)
        self._rows: dict[CgroupId, Traffic] = {}
        self._removed: list[CgroupId] = []
        self.changed: Collection[CgroupId] = ()
        self._cgroup2_ids: dict[CgroupId, int | None] = {}
        # Rest of the running scan: parent directories with the workloads by the child's name.
        self._to_scan: list[tuple[str, dict[str, CgroupId]]] = []
        self._per_tick = 0
        self._scan_due_ns = 0

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Count for *workloads* from now on, and for no others."""
        before, self._workloads = self._workloads, tuple(workloads)
        change = diff_workloads(before, self._workloads).by_fields("cgroup", "path")
        if not (change.added or change.removed):
            return
        for workload in change.removed:
            del self._paths[workload.cgroup], self._cgroup2_ids[workload.cgroup]
        # Directories of known workloads are checked by the scan.
        for cgroup, path in ((w.cgroup, w.path) for w in change.added):
            self._paths[cgroup] = path
            self._cgroup2_ids[cgroup] = self._cgroup2_id(cgroup, path)
        self._update_members(w.cgroup for w in (*change.removed, *change.added))

    def poll(self, now_ns: int) -> Mapping[CgroupId, Traffic]:
        """Return the counters of all workloads that have a cgroup2 directory.

        New and recreated directories are found within five seconds, and start at zero then.
        """
        self._scan(now_ns)
        used = self._slots.max(initial=-1) + 1
        totals = self._traffic[:, :used].sum(axis=0, dtype=np.uint64)
        grown = totals[self._slots] - self._bases
        (changed,) = (grown != self._grown[self._slots]).any(axis=1).nonzero()
        self._grown[self._slots[changed]] = grown[changed]
        cgroups = [self._cgroups[row] for row in changed.tolist()]
        rows = map(tuple.__new__, repeat(Traffic), grown[changed].tolist())
        self._rows |= zip(cgroups, rows, strict=True)
        self.changed, self._removed = (*self._removed, *cgroups), []
        return self._rows

    @property
    def cost(self) -> RunTime | None:
        """The probe's runs and run time so far; ``None`` unless kernel.bpf_stats_enabled is 1."""
        return run_time(self._loaded.link_fds)

    def close(self) -> None:
        """Detach the probe."""
        self._loaded.close()

    def _scan(self, now_ns: int) -> None:
        """Update the members from the present directories, a part of them in each tick.

        If the cpu controller is on v2, a workload is its own cgroup2 directory, and there is
        nothing to scan.
        """
        if not self._to_scan and now_ns >= self._scan_due_ns:
            self._scan_due_ns = now_ns + _SCAN_NS
            self._to_scan = _by_parent(self._paths)
            self._per_tick = math.ceil(len(self._to_scan) / _SCAN_PARTS)
        due, self._to_scan = self._to_scan[: self._per_tick], self._to_scan[self._per_tick :]
        found: dict[CgroupId, int | None] = {}
        for parent, cgroups in due:
            children = _children(self._unified + parent)
            for name, cgroup in cgroups.items():
                if self._paths.get(cgroup) == f"{parent}/{name}":
                    found[cgroup] = children.get(name)
        if any(self._cgroup2_ids.get(cgroup) != cgroup2_id for cgroup, cgroup2_id in found.items()):
            self._cgroup2_ids |= found
            self._update_members(found)

    def _update_members(self, changed: Iterable[CgroupId]) -> None:
        """Remove and add members according to ``_cgroup2_ids``; waiting workloads come first."""
        changed = dict.fromkeys(changed)
        for cgroup in changed:
            member = self._members.get(cgroup)
            if member is not None and self._cgroup2_ids.get(cgroup) != member.cgroup2_id:
                del self._members[cgroup]
                self._rows.pop(cgroup, None)
                self._removed.append(cgroup)
                self._slot_of_cgroup.delete(member.cgroup2_id)
                self._free.append(member.slot)
        for cgroup in self._waiting | changed:
            self._add_member(cgroup)
        self._cgroups = list(self._members)
        self._slots = np.array([m.slot for m in self._members.values()], np.int64)
        self._bases = self._base_of_slot[self._slots]

    def _add_member(self, cgroup: CgroupId) -> None:
        cgroup2_id = self._cgroup2_ids.get(cgroup)
        self._waiting.pop(cgroup, None)
        if cgroup2_id is None or cgroup in self._members:
            return
        if not self._free:
            self._waiting[cgroup] = None
            return
        slot = self._free.popleft()
        self._base_of_slot[slot] = self._traffic[:, slot].sum(axis=0, dtype=np.uint64)
        self._grown[slot] = _UNKNOWN
        self._members[cgroup] = _Member(cgroup2_id, slot)
        self._slot_of_cgroup.set(cgroup2_id, slot, 0)

    def _cgroup2_id(self, cgroup: CgroupId, path: str) -> int | None:
        if cgroup.hierarchy == "v2":
            return cgroup.id
        try:
            return os.stat(self._unified + path).st_ino  # noqa: PTH116 - half the time of Path
        except (FileNotFoundError, NotADirectoryError):
            return None


def _by_parent(paths: Mapping[CgroupId, str]) -> list[tuple[str, dict[str, CgroupId]]]:
    """Return (parent directory, workload by name) of all *paths* that are not v2 cgroups."""
    parents: dict[str, dict[str, CgroupId]] = {}
    for cgroup, path in paths.items():
        parent, _, name = path.rpartition("/")
        if cgroup.hierarchy != "v2" and name:
            parents.setdefault(parent, {})[name] = cgroup
    return list(parents.items())


def _children(directory: str) -> dict[str, int]:
    """Return the inode numbers of the entries of *directory*, in a tenth of the time of stats."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.inode() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def trial() -> tuple[bool, str]:
    """Load the probe once and return (success, detail), for ``sweetpoint doctor``."""
    try:
        layout = find_cgroup_layout()
        NetProbe(layout, cpus=max(possible_cpus()) + 1, max_slots=8).close()
    except (HostError, LoadError, OSError) as error:
        return False, str(error)
    return True, f"compiled, loaded and attached at {layout.unified}"
