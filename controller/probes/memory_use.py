# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of this host, and of the cgroups that the memory guard limits.

/proc/meminfo takes 2 us and a cgroup 20 us to read, because the kernel sums memory.stat over all
CPUs. A poll reads at most 50 cgroups, in rotation. Up to 20 limited ones are read in each poll,
which is the usual case: a limit is set on a cgroup above many workloads.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
from itertools import cycle, islice
from pathlib import Path

from controller.core.model import CgroupId, MemorySample, MemoryUse, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.memory import MemoryHierarchy

__all__ = ("MemoryMeter",)

_MEMINFO = Path("/proc/meminfo")
_ROUND_NS = NS_PER_SEC
_PER_POLL = 50
_FEW = 20
# Of the workloads, which matter only where one has to be evicted.
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


class MemoryMeter:
    """Reads what the memory guard needs; off until ``reconfigure``. For the control thread."""

    def __init__(self, hierarchy: MemoryHierarchy, meminfo: Path = _MEMINFO) -> None:
        self._hierarchy = hierarchy
        self._meminfo = meminfo
        self._capacity: int | None = None
        self._short = 0
        self._on = False
        self._limited = _Cgroups(hierarchy)
        self._others = _Cgroups(hierarchy)
        self._workloads = _Cgroups(hierarchy)
        self._due_ns = 0
        self._sample: MemorySample | None = None

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
        self._limited.set({CgroupId(each.scope, each.id): each.path for each in limited})
        self._workloads.set({each.cgroup: each.path for each in best_effort})
        others = (w for w in workloads if w.qos is not QosClass.BE or w.memory_at is None)
        self._others.set({each.cgroup: each.path for each in others})
        self._due_ns = 0

    def poll(self, now_ns: int) -> MemorySample | None:
        """Return the memory now, with many limited cgroups that of the last second.

        ``None``: not known.
        """
        if not self._on:
            return None
        before = self._sample
        is_short = before is not None and before.available_bytes < self._short
        if now_ns < self._due_ns and not is_short and len(self._limited) > _FEW:
            return before
        self._due_ns = now_ns + _ROUND_NS
        limited = self._limited.poll()
        needed = sum(each.needed_bytes for each in limited)
        if self._capacity is None:
            host = _fields(self._meminfo)
            if "MemTotal:" not in host or "MemAvailable:" not in host:
                return before
            available = host["MemAvailable:"] << 10  # /proc/meminfo is in KiB
            others = max(0, (host["MemTotal:"] << 10) - available - needed)
        else:
            others = sum(each.needed_bytes for each in self._others.poll())
            available = max(0, self._capacity - others - needed)
        workloads = self._workloads.poll(_PER_POLL if available < self._short else _SLOWLY)
        self._sample = MemorySample(available, others, limited, workloads)
        return self._sample


class _Cgroups:
    """The last readings of some cgroups, of which a poll renews 50."""

    def __init__(self, hierarchy: MemoryHierarchy) -> None:
        self._hierarchy = hierarchy
        self._paths: dict[CgroupId, str] = {}
        self._next: Iterator[CgroupId] = iter(())
        self._found: dict[CgroupId, MemoryUse] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def set(self, paths: Mapping[CgroupId, str]) -> None:
        if paths != self._paths:
            self._paths = dict(paths)
            self._next = cycle(tuple(paths))
            self._found = {c: use for c, use in self._found.items() if c in paths}

    def poll(self, most: int = _PER_POLL) -> tuple[MemoryUse, ...]:
        for cgroup in islice(self._next, min(most, len(self._paths))):
            use = self._read(cgroup, self._paths[cgroup])
            if use is None:
                self._found.pop(cgroup, None)
            else:
                self._found[cgroup] = use
        return tuple(self._found.values())

    def _read(self, cgroup: CgroupId, path: str) -> MemoryUse | None:
        version, mount = self._hierarchy
        if mount is None:
            return None
        folder = mount / path[1:]
        stat = _fields(folder / "memory.stat")
        with contextlib.suppress(OSError, ValueError):  # gone, or without the controller
            used = int((folder / _USED[version]).read_text(encoding="ascii"))
            cache = sum(stat.get(key, 0) for key in _RECLAIMABLE[version])
            unwritten = sum(stat.get(key, 0) for key in _UNWRITTEN[version])
            return MemoryUse(cgroup, used, max(0, used - max(0, cache - unwritten)))
        return None


def _fields(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {each[0]: int(each[1]) for each in words if len(each) >= 2 and each[1].isdecimal()}
