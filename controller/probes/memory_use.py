# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of this host and of cgroups that cannot be reclaimed.

``MemoryMeter`` measures for the memory guard, ``NonBestEffortMemory`` for the memory that may be
offered to new pods. The kernel sums memory.stat over all CPUs and descendants, which takes 20 us in
the median, so a poll reads a part of the cgroups, in rotation. For the guard it reads in each tick
if so little is available that it may be gone within a second, unless more than 20 cgroups are
limited. A limit is set on a cgroup above many workloads, so mostly there is one.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
import re

from controller.core.memory import SOON_BYTES
from controller.core.model import CgroupId, MemorySample, MemoryUse, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.memory import MemoryHierarchy, cgroup_text

__all__ = ("MemoryMeter", "NonBestEffortMemory")

_MEMINFO = Path("/proc/meminfo")
_ROUND_NS = NS_PER_SEC
_PER_POLL = 50
_FEW = 20
_OFFERED_PER_POLL = 20
# Of the workloads in a round, because they matter only where one has to be evicted.
_SLOWLY = 2
_USED = {"v2": "memory.current", "v1": "memory.usage_in_bytes"}
# What the kernel takes back without harm: keys of memory.stat, of a cgroup and those below it. Page
# cache that waits for a disk is none of it: v1 would wait in the time of the control thread
# (shrink_folio_list in mm/vmscan.c).
_RECLAIMABLE = {
    "v2": ("inactive_file", "active_file", "slab_reclaimable"),
    "v1": ("total_inactive_file", "total_active_file"),
}
_UNWRITTEN = {
    "v2": ("file_dirty", "file_writeback"),
    "v1": ("total_dirty", "total_writeback"),
}


_HOST_ROWS = re.compile(rb"^(MemTotal|MemAvailable):\s+([0-9]+)", re.MULTILINE)


class MemoryMeter:
    """Reads what the memory guard needs; off until ``reconfigure``. For the control thread.

    ``closely``, which the caller sets: each poll reads, as if memory was gone soon.
    """

    def __init__(self, hierarchy: MemoryHierarchy, meminfo: Path = _MEMINFO) -> None:
        self._hierarchy = hierarchy
        self._meminfo = str(meminfo)
        self._capacity: int | None = None
        self._short = 0
        self._on = False
        self._limited = _Cgroups(hierarchy)
        self._others = _Cgroups(hierarchy)
        self._workloads = _Cgroups(hierarchy)
        self._due_ns = 0
        self._sample: MemorySample | None = None
        self.closely = False

    def reconfigure(self, on: bool, capacity: int | None = None, short: int = 0) -> None:
        """Measure from now on, if *on*.

        :param capacity: bytes that the workloads share; ``None``: the memory of this host.
        :param short: with less available than this each poll reads as much as it may.
        """
        self._on, self._capacity, self._short = on, capacity, short
        self._sample, self._due_ns = None, 0

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Read the memory of *workloads* from now on."""
        best_effort = [each for each in workloads if each.qos is QosClass.BE]
        limited = {each.memory_at for each in best_effort if each.memory_at is not None}
        self._limited.set({each.place: each.path for each in limited})
        self._workloads.set({each.cgroup: each.path for each in best_effort})
        others = (w for w in workloads if w.qos is not QosClass.BE or w.memory_at is None)
        self._others.set({each.cgroup: each.path for each in others})
        self._due_ns = 0

    def poll(self, now_ns: int) -> MemorySample | None:
        """Return the memory now, or as it was within the last second; ``None``: not known."""
        if not self._on:
            return None
        before = self._sample
        available = None if before is None else before.available_bytes
        least = max(self._short, SOON_BYTES) if len(self._limited) <= _FEW else self._short
        is_round = now_ns >= self._due_ns
        is_plenty = available is not None and available >= least and not self.closely
        if not is_round and is_plenty:
            return before
        if is_round:
            self._due_ns = now_ns + _ROUND_NS
        limited = self._limited.poll(all_new=True)
        needed = sum(each.needed_bytes for each in limited)
        if self._capacity is None:
            host = _host_bytes(self._meminfo)
            if host is None:
                return before
            total, available = host
            others = max(0, total - available - needed)
        else:
            others = sum(each.needed_bytes for each in self._others.poll(all_new=True))
            available = max(0, self._capacity - others - needed)
        is_short = available < self._short
        most = _PER_POLL if is_short else _SLOWLY if is_round else 0
        workloads = self._workloads.poll(most)
        self._sample = MemorySample(available, others, limited, workloads)
        return self._sample


class NonBestEffortMemory:
    """Memory that is neither available nor needed by the given (best-effort) workloads.

    The memory of a new workload is read some seconds after it was added; until then it counts as
    memory of the rest of the host.
    """

    def __init__(self, hierarchy: MemoryHierarchy, meminfo: Path = _MEMINFO) -> None:
        self._meminfo = str(meminfo)
        self._workloads = _Cgroups(hierarchy)

    def poll(self, workloads: Iterable[Workload]) -> int | None:
        """Return the bytes not available and not needed by *workloads*; ``None`` if unknown."""
        self._workloads.set({each.cgroup: each.path for each in workloads})
        needed = sum(each.needed_bytes for each in self._workloads.poll(_OFFERED_PER_POLL))
        host = _host_bytes(self._meminfo)
        return None if host is None else max(0, host[0] - host[1] - needed)


def _host_bytes(meminfo: str) -> tuple[int, int] | None:
    """Return the memory of this host, and what of it is available; ``None``: not known."""
    host = dict(_HOST_ROWS.findall(cgroup_text(meminfo)))
    if len(host) < 2:
        return None
    return int(host[b"MemTotal"]) << 10, int(host[b"MemAvailable"]) << 10  # it is in KiB


class _Cgroups:
    """The last readings of some cgroups, of which a poll renews a part."""

    def __init__(self, hierarchy: MemoryHierarchy) -> None:
        version, mount = hierarchy
        self._mount = str(mount)
        self._used = _USED[version]
        keys = {each: 1 for each in _RECLAIMABLE[version]} | {
            each: -1 for each in _UNWRITTEN[version]
        }
        self._signs = {key.encode(): sign for key, sign in keys.items()}
        self._rows = _rows_of(self._signs)
        self._paths: dict[CgroupId, str] = {}
        # Those that were never read, and the others, the ones read longest ago first.
        self._new: list[CgroupId] = []
        self._order: deque[CgroupId] = deque()
        self._found: dict[CgroupId, MemoryUse] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def set(self, paths: Mapping[CgroupId, str]) -> None:
        folders = {cgroup: self._mount + path for cgroup, path in paths.items()}
        if folders != self._paths:
            self._order = deque(each for each in self._order if each in folders)
            known = set(self._order)
            self._new = [each for each in folders if each not in known]
            self._paths = folders
            self._found = {c: use for c, use in self._found.items() if c in paths}

    def poll(self, most: int = _PER_POLL, *, all_new: bool = False) -> tuple[MemoryUse, ...]:
        """Read *most* cgroups, those first that were never read; return the last readings.

        *all_new*: read more than *most*, if so many are new. What is not read yet would count as
        memory of others.
        """
        new, self._new = (self._new, []) if all_new else (self._new[:most], self._new[most:])
        old = [self._order.popleft() for _ in range(min(most - len(new), len(self._order)))]
        self._order.extend((*old, *new))
        for cgroup in (*old, *new):
            use = self._read(cgroup, self._paths[cgroup])
            if use is None:
                self._found.pop(cgroup, None)
            else:
                self._found[cgroup] = use
        return tuple(self._found.values())

    def _read(self, cgroup: CgroupId, folder: str) -> MemoryUse | None:
        stat, text = (
            cgroup_text(f"{folder}/memory.stat"),
            cgroup_text(f"{folder}/{self._used}").strip(),
        )
        if not text.isdigit():  # gone, or without the controller
            return None
        used = int(text)
        signs = self._signs
        cache = sum(signs[key] * int(number) for key, number in self._rows.findall(stat))
        return MemoryUse(cgroup, used, max(0, used - max(0, cache)))


def _rows_of(keys: Iterable[bytes]) -> re.Pattern[bytes]:
    return re.compile(rb"^(" + b"|".join(keys) + rb"):?\s+([0-9]+)", re.MULTILINE)
