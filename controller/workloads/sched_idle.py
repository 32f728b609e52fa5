# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Looks at the cgroup tree around best-effort work to tell on which cgroup sched-idle belongs."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
import contextlib
import os
from pathlib import Path

from controller.core.control.sched_idle import idle_placement, yields_to
from controller.core.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadDiff, diff_workloads
from controller.host.facts import CgroupLayout

__all__ = ("SchedIdlePlacer", "partial_idle")

_LOOK_NS = 20 * NS_PER_SEC


class SchedIdlePlacer:
    """Fills in ``Workload.idle_at``. Who did not change stays the same object.

    The tree is looked at now and then, for processes of others that turned up among best-effort
    work, and when workloads are in other folders than before. Between two such looks only what
    comes and goes is looked at.
    """

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self._given: tuple[Workload, ...] = ()
        self._result: tuple[Workload, ...] = ()
        self._placed: dict[CgroupId, Workload] = {}
        self._known: set[str] = set()  # paths
        # How many of each class every folder holds: where workloads are is all that counts here.
        self._folders: Counter[tuple[QosClass, str]] = Counter()
        self._strangers: tuple[str, ...] = ()
        self._levels: Mapping[str, str] = {}
        self._targets: Mapping[str, Target | None] = {}
        self._due_ns = 0

    def place(self, workloads: tuple[Workload, ...], now_ns: int) -> tuple[Workload, ...]:
        """Return *workloads* with the cgroups on which idle is to be set for them."""
        if workloads != self._given or now_ns >= self._due_ns:
            change = diff_workloads(self._given, workloads)
            self._given = workloads
            folders = frozenset(self._folders)
            self._count(change)
            if now_ns >= self._due_ns or folders != self._folders.keys():
                self._due_ns = now_ns + _LOOK_NS
                self._scan()
            else:
                self._rescan(change.removed)
            self._place(change)
        return self._result

    def _count(self, change: WorkloadDiff) -> None:
        for workload in change.removed:
            key = workload.qos, _parent(workload.path)
            self._folders[key] -= 1
            if not self._folders[key]:
                del self._folders[key]
            self._known.discard(workload.path)
        for workload in change.added:
            self._folders[workload.qos, _parent(workload.path)] += 1
            self._known.add(workload.path)

    def _scan(self) -> None:
        above = self._above_best_effort()
        leading = above | _upwards(folder for _, folder in self._folders)
        self._strangers = tuple(_other_workloads(self._layout, above, self._known, leading))

    def _rescan(self, gone: Iterable[Workload]) -> None:
        # Who is no workload any more may still be there.
        above = self._above_best_effort()
        left = (w.path for w in gone if _parent(w.path) in above)
        self._strangers = tuple(
            path
            for path in dict.fromkeys((*above, *self._strangers, *left))
            if path not in self._known and _has_others(self._layout, path, above)
        )

    def _place(self, change: WorkloadDiff) -> None:
        # As good as everybody's path: only where somebody is decides.
        by_class: dict[QosClass, list[str]] = {qos: [] for qos in QosClass}
        for qos, folder in self._folders:
            by_class[qos].append(f"{folder}/*")
        others = (*by_class[QosClass.SYSTEM], *self._strangers)
        best_effort, services = by_class[QosClass.BE], by_class[QosClass.LS]
        levels = self._levels = idle_placement(best_effort, services, others, self._levels)
        before = self._targets
        self._targets = {
            _parent(path): None if level == path else self._target(level)
            for path, level in levels.items()
        }
        for workload in change.removed:
            del self._placed[workload.cgroup]
        for workload in change.added if before == self._targets else self._given:
            self._placed[workload.cgroup] = self._with_target(workload)
        self._result = tuple(self._placed[workload.cgroup] for workload in self._given)

    def _with_target(self, workload: Workload) -> Workload:
        if workload.qos is not QosClass.BE:
            return workload
        target = self._targets[_parent(workload.path)]
        return workload if target is None else workload._replace(idle_at=target)

    def _above_best_effort(self) -> set[str]:
        return _upwards(folder for qos, folder in self._folders if qos is QosClass.BE)

    def _target(self, path: str) -> Target | None:
        try:
            inode = (self._layout.mount / path[1:]).stat().st_ino
        except FileNotFoundError:  # it just left with all its workloads
            return None
        return Target(TargetKind.CGROUP, self._layout.hierarchy, inode, path)


def partial_idle(workloads: Iterable[Workload]) -> tuple[str, ...]:
    """Return the cgroups on which idle is set, but that do not give way to every service."""
    workloads = tuple(workloads)
    # In what folder each is decides alone, and a thousand are in a handful of folders.
    services = {_parent(w.path): w.path for w in workloads if w.qos is QosClass.LS}
    levels = {
        w.path if w.idle_at is None else w.idle_at.path for w in workloads if w.qos is QosClass.BE
    }
    whole = {
        parent: all(yields_to(level, service) for service in services.values())
        for parent, level in {_parent(level): level for level in levels}.items()
    }
    return tuple(sorted(level for level in levels if not whole[_parent(level)]))


def _other_workloads(
    layout: CgroupLayout, above: Collection[str], known: Collection[str], leading: Collection[str]
) -> Iterator[str]:
    """Yield the cgroups above and beside best-effort workloads with processes of nobody known."""
    for path in sorted(above):
        if _has_others(layout, path, above):
            yield path
        for child in _folders(layout.mount / path[1:]):
            name = f"{path}/{child}"
            if not (name in known or name in leading) and _has_others(layout, name, above):
                yield name


def _has_others(layout: CgroupLayout, path: str, above: Collection[str]) -> bool:
    folder = layout.mount / path[1:]
    return _has_processes(folder) if path in above else _is_populated(layout, folder)


def _upwards(folders: Iterable[str]) -> set[str]:
    # These and all above them, without the root.
    found: set[str] = set()
    new = set(folders)
    while new := new - found - {""}:
        found |= new
        new = set(map(_parent, new))
    return found


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


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
