# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that cannot be had back by dropping caches: of the host, and of some cgroups of it."""

from collections.abc import Iterable, Iterator
import itertools
from pathlib import Path
from typing import Literal, NamedTuple

from controller.host import mounts
from controller.model import CgroupId, Workload

__all__ = ("MemoryHierarchy", "OthersMemory", "find_memory")

# Reading memory.stat makes the kernel add up every CPU's part.
_PER_READ = 20
# In memory.stat, in bytes, of the cgroup and all below it. Page cache is not in it: who needs
# memory gets that first, and MemAvailable counts it as available.
_KEPT = {
    "v2": ("anon", "shmem", "slab_unreclaimable", "pagetables", "kernel_stack"),
    "v1": ("total_rss", "total_shmem"),
}


class MemoryHierarchy(NamedTuple):
    """Where the memory controller is; ``mount`` of ``None``: nowhere."""

    version: Literal["v1", "v2"]
    mount: Path | None


def find_memory(unified: Path | None) -> MemoryHierarchy:
    """Return where this host has the memory controller; *unified* is the mount of cgroup2.

    A v1 mount with it wins: the kernel gives a controller to one hierarchy only.
    """
    for each in mounts(None, {"cgroup"}):
        if "memory" in each.options:
            return MemoryHierarchy("v1", each.point)
    return MemoryHierarchy("v2", unified)


class OthersMemory:
    """Follows what is used on this host by everybody but the given workloads.

    What a workload uses is known some seconds after it came; until then it counts as others'.
    """

    def __init__(self, hierarchy: MemoryHierarchy, meminfo: Path = Path("/proc/meminfo")) -> None:
        self._meminfo = meminfo
        self._mount = hierarchy.mount
        self._keys = _KEPT[hierarchy.version]
        self._paths: dict[CgroupId, str] = {}
        self._next: Iterator[CgroupId] = iter(())
        self._used: dict[CgroupId, int] = {}

    def read(self, workloads: Iterable[Workload]) -> int | None:
        """Return the bytes that are not available and not used by *workloads*."""
        paths = {each.cgroup: each.path for each in workloads}
        if paths != self._paths:
            self._paths = paths
            self._next = itertools.cycle(tuple(paths))
            self._used = {c: used for c, used in self._used.items() if c in paths}
        for cgroup in itertools.islice(self._next, min(_PER_READ, len(paths))):
            used = self._used_by(paths[cgroup])
            if used is None:
                self._used.pop(cgroup, None)
            else:
                self._used[cgroup] = used
        host = _fields(self._meminfo)
        if "MemTotal:" not in host or "MemAvailable:" not in host:
            return None
        taken = (host["MemTotal:"] - host["MemAvailable:"]) << 10  # told in KiB
        return max(0, taken - sum(self._used.values()))

    def _used_by(self, path: str) -> int | None:
        if self._mount is None:
            return None
        found = _fields(self._mount / path[1:] / "memory.stat")
        return sum(found.get(key, 0) for key in self._keys) if found else None


def _fields(path: Path) -> dict[str, int]:
    # Gone, or the controller is not handed down to there.
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {each[0]: int(each[1]) for each in words if len(each) >= 2 and each[1].isdigit()}
