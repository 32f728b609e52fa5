# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Looks at the cgroup tree around best-effort work to tell on which cgroup sched-idle belongs."""

from collections.abc import Collection, Iterable, Iterator, Mapping
import contextlib
import os
from pathlib import Path

from controller.control.idle_level import gives_way, idle_levels
from controller.host import CgroupLayout
from controller.model import QosClass, Target, TargetKind, Workload
from controller.units import NS_PER_SEC

__all__ = ("IdlePlacer", "without_effect")

_LOOK_NS = 20 * NS_PER_SEC


class IdlePlacer:
    """Fills in ``Workload.idle_at``.

    The tree is looked at when the workloads change, and now and then for processes of others
    that turned up among best-effort work.
    """

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self._given: tuple[Workload, ...] = ()
        self._placed: tuple[Workload, ...] = ()
        self._levels: Mapping[str, str] = {}
        self._due_ns = 0

    def place(self, workloads: tuple[Workload, ...], now_ns: int) -> tuple[Workload, ...]:
        """Return *workloads* with the cgroups on which idle is to be set for them."""
        if workloads != self._given or now_ns >= self._due_ns:
            self._due_ns = now_ns + _LOOK_NS
            self._given = workloads
            self._placed = self._look(workloads)
        return self._placed

    def _look(self, workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
        best_effort = [w.path for w in workloads if w.qos is QosClass.BE]
        services = [w.path for w in workloads if w.qos is QosClass.LS]
        known = frozenset(w.path for w in workloads)
        others = [w.path for w in workloads if w.qos is QosClass.SYSTEM]
        others += _strangers(self._layout, best_effort, known)
        levels = self._levels = idle_levels(best_effort, services, others, self._levels)
        higher = {level for path, level in levels.items() if level != path}
        targets = {level: self._target(level) for level in higher}
        return tuple(
            w._replace(idle_at=targets[levels[w.path]])
            if levels.get(w.path, w.path) != w.path
            else w
            for w in workloads
        )

    def _target(self, path: str) -> Target | None:
        try:
            inode = (self._layout.mount / path[1:]).stat().st_ino
        except FileNotFoundError:  # it just left with all its workloads
            return None
        return Target(TargetKind.CGROUP, self._layout.hierarchy, inode, path)


def without_effect(workloads: Iterable[Workload]) -> tuple[str, ...]:
    """Return the cgroups on which idle is set, but that do not give way to every service."""
    workloads = tuple(workloads)
    services = [w.path for w in workloads if w.qos is QosClass.LS]
    levels = {
        w.path if w.idle_at is None else w.idle_at.path for w in workloads if w.qos is QosClass.BE
    }
    # Whether a level gives way depends on its parent alone, of which there are few.
    whole = {
        parent: all(gives_way(level, service) for service in services)
        for parent, level in {level.rpartition("/")[0]: level for level in levels}.items()
    }
    return tuple(sorted(level for level in levels if not whole[level.rpartition("/")[0]]))


def _strangers(
    layout: CgroupLayout, best_effort: Iterable[str], known: Collection[str]
) -> Iterator[str]:
    """Yield the cgroups above and beside best-effort workloads with processes of nobody known."""
    above = _between(best_effort)
    leading = above | _between(known)
    for path in sorted(above):
        folder = layout.mount / path[1:]
        if _has_processes(folder):
            yield path
        for child in _folders(folder):
            name = f"{path}/{child}"
            if name not in known and name not in leading and _is_populated(layout, folder / child):
                yield name


def _between(paths: Iterable[str]) -> set[str]:
    # The cgroups above *paths*, without the root; a thousand pods lie in a handful of them.
    found: set[str] = set()
    parents = {path.rpartition("/")[0] for path in paths}
    while parents := parents - found - {""}:
        found |= parents
        parents = {path.rpartition("/")[0] for path in parents}
    return found


def _is_populated(layout: CgroupLayout, folder: Path) -> bool:
    if layout.version == "v1":
        below = (folder / child for child in _folders(folder))
        return _has_processes(folder) or any(_is_populated(layout, child) for child in below)
    try:
        return "populated 1" in (folder / "cgroup.events").read_text(encoding="ascii")
    except OSError:  # gone
        return False


def _has_processes(folder: Path) -> bool:
    try:
        return bool((folder / "cgroup.procs").read_text(encoding="ascii"))
    except OSError:  # gone, or threaded: EOPNOTSUPP
        return False


def _folders(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []
