# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""IP bytes and packets per workload in both directions, from ``bpf/net.bpf.c``.

Packets belong to cgroups of the cgroup2 tree. Where the cpu controller is on v1, a workload's
cgroup2 directory is the one with the same path; a workload that has none is not measured. A
packet is what IP hands over: with segmentation offload one of up to 64 KiB, whose headers count
once, so that the wire carries up to 4 % more.
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
# Other than what anybody gained, so that who is new has a row with the next read.
_UNKNOWN = np.iinfo(np.uint64).max
_LOOK_NS = 5 * NS_PER_SEC
# In how many ticks all directories are looked for.
_LOOK_PARTS = 20


class Traffic(NamedTuple):
    """What a workload sent and received since it was assigned."""

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

    ``changed``: of whom the last ``read`` told something else than the one before.

    :param layout: where the cgroup2 tree is.
    :param cpus: possible CPUs of the machine.
    :param max_slots: workloads that can be told apart; the others are not measured.
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
        self._followed: tuple[Workload, ...] = ()
        self._wanted: dict[CgroupId, str] = {}
        self._members: dict[CgroupId, _Member] = {}
        self._cgroups: list[CgroupId] = []  # the members, in the order of these two
        self._slots = np.zeros(0, np.int64)
        self._bases = np.zeros((0, 4), np.uint64)
        self._base_of_slot = np.zeros((max_slots, 4), np.uint64)
        self._waiting: dict[CgroupId, None] = {}  # for a slot
        # First in, first out: a slot that was given back rests as long as it can.
        self._free = deque(range(max_slots))
        # What each slot gained as of the last read, and the same as rows by workload.
        self._grown = np.zeros((max_slots, 4), np.uint64)
        self._rows: dict[CgroupId, Traffic] = {}
        self._gone: list[CgroupId] = []
        self.changed: Collection[CgroupId] = ()
        self._found: dict[CgroupId, int | None] = {}
        # Directories whose children are still to be looked at: workloads by the child's name.
        self._turn: list[tuple[str, dict[str, CgroupId]]] = []
        self._per_look = 0
        self._look_due_ns = 0

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Count for *workloads* from now on, and for nobody else."""
        before, self._followed = self._followed, tuple(workloads)
        change = diff_workloads(before, self._followed).by_fields("cgroup", "path")
        if not (change.added or change.removed):
            return
        for workload in change.removed:
            del self._wanted[workload.cgroup], self._found[workload.cgroup]
        # Who was here before is looked at in turn.
        for cgroup, path in ((w.cgroup, w.path) for w in change.added):
            self._wanted[cgroup] = path
            self._found[cgroup] = self._cgroup2_id(cgroup, path)
        self._add_found(w.cgroup for w in (*change.removed, *change.added))

    def poll(self, now_ns: int) -> Mapping[CgroupId, Traffic]:
        """Return the counters of all workloads that have a cgroup2 directory.

        Directories that appear or are made anew are found within five seconds; counting starts
        at zero then.
        """
        self._scan(now_ns)
        used = self._slots.max(initial=-1) + 1
        totals = self._traffic[:, :used].sum(axis=0, dtype=np.uint64)
        grown = totals[self._slots] - self._bases
        (moved,) = (grown != self._grown[self._slots]).any(axis=1).nonzero()
        self._grown[self._slots[moved]] = grown[moved]
        others = [self._cgroups[row] for row in moved.tolist()]
        rows = map(tuple.__new__, repeat(Traffic), grown[moved].tolist())
        self._rows |= zip(others, rows, strict=True)
        self.changed, self._gone = (*self._gone, *others), []
        return self._rows

    @property
    def cost(self) -> RunTime | None:
        """What the kernel spent in it so far; ``None`` unless kernel.bpf_stats_enabled is 1."""
        return run_time(self._loaded.link_fds)

    def close(self) -> None:
        """Detach the probe."""
        self._loaded.close()

    def _scan(self, now_ns: int) -> None:
        """Bring the members in line with the directories that are there now, some in each tick.

        Where the cpu controller is on v2 those are the workloads themselves.
        """
        if not self._turn and now_ns >= self._look_due_ns:
            self._look_due_ns = now_ns + _LOOK_NS
            self._turn = _by_parent(self._wanted)
            self._per_look = math.ceil(len(self._turn) / _LOOK_PARTS)
        due, self._turn = self._turn[: self._per_look], self._turn[self._per_look :]
        now: dict[CgroupId, int | None] = {}
        for parent, cgroups in due:
            there = _children(self._unified + parent)
            for name, cgroup in cgroups.items():
                if self._wanted.get(cgroup) == f"{parent}/{name}":
                    now[cgroup] = there.get(name)
        if any(self._found.get(cgroup) != cgroup2_id for cgroup, cgroup2_id in now.items()):
            self._found |= now
            self._add_found(now)

    def _add_found(self, changed: Iterable[CgroupId]) -> None:
        """Make members of those of *changed* that have a directory; those who wait come first."""
        changed = dict.fromkeys(changed)
        for cgroup in changed:
            member = self._members.get(cgroup)
            if member is not None and self._found.get(cgroup) != member.cgroup2_id:
                del self._members[cgroup]
                self._rows.pop(cgroup, None)
                self._gone.append(cgroup)
                self._slot_of_cgroup.delete(member.cgroup2_id)
                self._free.append(member.slot)
        for cgroup in self._waiting | changed:
            self._join(cgroup)
        self._cgroups = list(self._members)
        self._slots = np.array([m.slot for m in self._members.values()], np.int64)
        self._bases = self._base_of_slot[self._slots]

    def _join(self, cgroup: CgroupId) -> None:
        cgroup2_id = self._found.get(cgroup)
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
    """Return the directories that hold those of *paths* that may be made anew below them."""
    found: dict[str, dict[str, CgroupId]] = {}
    for cgroup, path in paths.items():
        parent, _, name = path.rpartition("/")
        if cgroup.hierarchy != "v2" and name:
            found.setdefault(parent, {})[name] = cgroup
    return list(found.items())


def _children(directory: str) -> dict[str, int]:
    """Return the inode numbers of what is in *directory*: a tenth of the time of a stat of each."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.inode() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def trial() -> tuple[bool, str]:
    """Load the probe once: (whether that works, what to tell); for ``sweetpoint doctor``."""
    try:
        layout = find_cgroup_layout()
        NetProbe(layout, cpus=max(possible_cpus()) + 1, max_slots=8).close()
    except (HostError, LoadError, OSError) as error:
        return False, str(error)
    return True, f"compiled, loaded and attached at {layout.unified}"
