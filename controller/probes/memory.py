# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that cannot be had back by dropping caches: of the host, and of some cgroups of it."""

from collections.abc import Iterable, Iterator
import itertools
from pathlib import Path

from controller.host import mounts
from controller.model import CgroupId, Workload

__all__ = ("OthersMemory",)

# Reading memory.stat makes the kernel add up every CPU's part.
_PER_READ = 20
# In memory.stat, in bytes, of the cgroup and all below it. Page cache is not in it: who needs
# memory gets that first, and MemAvailable counts it as available.
_KEPT = {
    "v2": ("anon", "shmem", "slab_unreclaimable", "pagetables", "kernel_stack"),
    "v1": ("total_rss", "total_shmem"),
}


class OthersMemory:
    """Follows what is used on this host by everybody but the given workloads.

    What a workload uses is known some seconds after it came; until then it counts as others'.
    """

    def __init__(
        self, unified: Path | None, meminfo: Path = Path("/proc/meminfo"), v1: Path | None = None
    ) -> None:
        """*unified* is the mount of cgroup2, *v1* that of v1's memory controller."""
        self._meminfo = meminfo
        v1 = v1 or _v1_mount()
        self._mount = v1 or unified
        self._keys = _KEPT["v2" if v1 is None else "v1"]
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


def _v1_mount() -> Path | None:
    found = (each for each in mounts(None, {"cgroup"}) if "memory" in each.options)
    return next((each.point for each in found), None)


def _fields(path: Path) -> dict[str, int]:
    # Gone, or the controller is not handed down to there.
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {each[0]: int(each[1]) for each in words if len(each) >= 2 and each[1].isdigit()}
