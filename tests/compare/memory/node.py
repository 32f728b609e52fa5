# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cgroup with a limit of memory that is the node: its workloads, their limits and figures."""

from collections.abc import Callable
import errno
import os
from pathlib import Path

from controller.demo.cgroups import DemoCgroups, DemoError
from controller.host.memory import NO_LIMIT_V1_BYTES

__all__ = ("BATCH", "CAPACITY_MIB", "MIB", "NODE", "PODS", "WEB", "MemoryNode", "Use")

MIB = 1 << 20
NODE = "node"
WEB, BATCH = f"{NODE}/web", f"{NODE}/batch"
PODS = tuple(f"{BATCH}/{name}" for name in ("one", "two", "three"))
CAPACITY_MIB = 640


class Use:
    """Memory of a cgroup in bytes, from *usage*, and *stat*, the text of its memory.stat."""

    def __init__(self, usage: int, stat: str) -> None:
        rows = dict(line.split() for line in stat.splitlines())
        # On v1 only the rows with this prefix have the memory of all cgroups below.
        prefix = "total_" if "total_rss" in rows else ""
        self._rows = {name.removeprefix(prefix): int(value) for name, value in rows.items()}
        self.all_bytes = usage

    @property
    def working_set_bytes(self) -> int:
        """What kubelet counts: all but the file pages that were not used lately."""
        return max(0, self.all_bytes - self._rows["inactive_file"])

    @property
    def needed_bytes(self) -> int:
        """All but file pages: what the kernel's estimate of available memory leaves."""
        return max(0, self.working_set_bytes - self._rows["active_file"])

    @property
    def refaults(self) -> int:
        """How many pages were read again that had been pushed out."""
        return sum(
            value for name, value in self._rows.items() if name.startswith("workingset_refault")
        )


class MemoryNode:
    """The cgroups below ``NODE`` in *cgroups*; their memory is in the hierarchy at *mount*."""

    def __init__(self, cgroups: DemoCgroups, mount: Path, version: str) -> None:
        self._cgroups, self.version = cgroups, version
        self._v2 = version == "v2"
        self._memory = mount / cgroups.path[1:]
        self._limit = "memory.max" if self._v2 else "memory.limit_in_bytes"
        self._usage = "memory.current" if self._v2 else "memory.usage_in_bytes"
        self.refused = 0

    def make(self) -> None:
        """Make the cgroups with the limit of the node, and kubelet's weight of BestEffort pods.

        :raises DemoError: the kernel refuses.
        """
        self._cgroups.add((NODE, WEB, BATCH, *PODS))
        weight, value = ("cpu.weight", "1") if self._v2 else ("cpu.shares", "2")
        try:
            (self._memory / NODE / self._limit).write_text(str(CAPACITY_MIB * MIB))
            (self._cgroups.directories(BATCH)[0] / weight).write_text(value)
        except OSError as error:
            raise DemoError(f"cannot make {self._memory / NODE}: {error}") from error

    def directory(self, name: str) -> Path:
        """Return the cgroup *name* in the hierarchy of memory."""
        return self._memory / name

    def use(self, name: str) -> Use:
        """Return the memory of the cgroup *name*."""
        folder = self.directory(name)
        return Use(int((folder / self._usage).read_text()), (folder / "memory.stat").read_text())

    def limit_batch(self, limit_bytes: int | None) -> bool:
        """Limit all pods of the job together; ``None``: no limit. Return whether it is in force.

        v1 refuses a limit below what cannot be reclaimed (EBUSY).
        """
        none = "max" if self._v2 else str(NO_LIMIT_V1_BYTES)
        text = none if limit_bytes is None else str(limit_bytes)
        file = os.open(self._memory / BATCH / self._limit, os.O_WRONLY)
        try:
            os.write(file, text.encode())
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            self.refused += 1
            return False
        finally:
            os.close(file)
        return True

    def join(self, name: str, score: int) -> Callable[[], None]:
        """Return what a child calls before exec: it enters *name* and gets the oom_score_adj."""
        directories = self._cgroups.directories(name)

        def enter() -> None:
            Path("/proc/self/oom_score_adj").write_text(str(score))
            for directory in directories:
                (directory / "cgroup.procs").write_text("0")

        return enter

    def drop_cache(self) -> None:
        """Give back the file pages of the last block, so that each begins alike."""
        if self._v2:
            return
        for name in (*PODS, WEB):
            (self.directory(name) / "memory.force_empty").write_text("0")
