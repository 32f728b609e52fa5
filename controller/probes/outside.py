# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cgroups outside all workloads that are measured, so that what hurts a service has a name.

The kernel looks up the owner of a task from the root downwards, and takes the first cgroup that has
one. So a cgroup above a workload, or inside one, is never among them.
"""

from collections.abc import Iterable, Iterator
import os

from controller.core.model import CgroupId, Outside, Workload
from controller.host.facts import CgroupLayout

__all__ = ("MOST", "OutsideFinder")

# They share the slots of the probe with the workloads.
MOST = 64
# The levels below the root that are looked at: /system.slice/ssh.service is at the second.
_LEVELS = 2


class OutsideFinder:
    """Finds them in the hierarchy of *layout*; one that is still there is the same object."""

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self._known: dict[Outside, Outside] = {}

    def find(self, workloads: Iterable[Workload]) -> tuple[Outside, ...]:
        """Return at most ``MOST`` cgroups that hold none of *workloads* and are in none of them.

        Of a slice, and of a cgroup above a workload, those are taken that lie in it.
        """
        taken = {each.path for each in workloads}
        above = {"/".join(path.split("/")[:end]) for path in taken for end in _ends(path)}
        found = sorted(self._walk("", 1, taken, above), key=lambda each: each.path)[:MOST]
        self._known = {each: self._known.get(each, each) for each in found}
        return tuple(self._known.values())

    def _walk(self, path: str, level: int, taken: set[str], above: set[str]) -> Iterator[Outside]:
        for entry in self._directories(path):
            below = f"{path}/{entry.name}"
            if below in taken:
                continue
            is_group = below in above or entry.name.endswith(".slice")
            if level < _LEVELS and is_group:
                yield from self._walk(below, level + 1, taken, above)
            elif below not in above:
                yield Outside(CgroupId(self._layout.hierarchy, entry.inode()), below)

    def _directories(self, path: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(f"{self._layout.mount}{path}") as entries:
                yield from (each for each in entries if each.is_dir(follow_symlinks=False))
        except OSError:  # it left meanwhile
            return


def _ends(path: str) -> range:
    """Return where the paths above *path* end, in its parts."""
    return range(2, len(path.split("/")))
