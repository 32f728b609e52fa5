# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Placement of cpu.idle, a common quota and a limit of memory: on which cgroup of each workload.

cpu.idle orders siblings only, so it may have to be set on a cgroup above the workload. That cgroup
must not contain other processes, so the tree around the best-effort workloads is scanned for them.
The rule of the placement is in ``controller.workloads.idle_placement``. It does not apply to the
cgroups of kubelet, which writes weights to the levels above a pod: there the pod's own cgroup is
idle if kubelet never writes its weight, and has the lowest weight otherwise. The level above keeps
the weight of kubelet, 2 on v1 and 1 on v2, which places its pods behind those of other levels.

A quota for all workloads of a directory is possible under the same condition: nothing else may be
in it or below. It is not on cgroup v1, where the kernel refuses a quota of a child that exceeds the
parent's (tg_cfs_schedulable_down in kernel/sched/core.c): kubelet, the runtime and systemd could
not write theirs any more. Of kubelet's levels only that of the BestEffort pods may have one,
because services start in the others.

A limit of memory is placed by the same rule, and on v1 too, where no such limit is refused for one
above it. v1 has a hierarchy for the memory controller, in which the runtime makes the same paths as
in that of the cpu controller. On a plain host the processes are compared, because anything may be
in a cgroup of the same name.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
import contextlib
import os
from pathlib import Path

from controller.core.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.memory import MemoryHierarchy
from controller.workloads.changes import WorkloadDiff, diff_workloads
from controller.workloads.idle_placement import idle_placement, yields_to
from controller.workloads.pods.cgroups import kubelet_writes_weight, may_own_cpus

__all__ = ("KnobPlacer", "partial_idle")

_SCAN_NS = 20 * NS_PER_SEC


class KnobPlacer:
    """Sets the cgroups with knobs for a workload; an unchanged workload stays the same.

    The tree is scanned for other processes every 20 s, and when the set of directories that contain
    workloads changes. In between only added and removed workloads are examined.

    :param layout: the hierarchy with the cgroups of the workloads.
    :param memory: the hierarchy of the memory controller; ``None``: no limit of memory is placed.
    """

    def __init__(self, layout: CgroupLayout, memory: MemoryHierarchy | None = None) -> None:
        self._layout = layout
        self._memory = memory
        self._given: tuple[Workload, ...] = ()
        self._result: tuple[Workload, ...] = ()
        self._placed: dict[CgroupId, Workload] = {}
        self._known: set[str] = set()  # paths
        # The number of workloads by class and directory; only directories matter for the placement.
        self._folders: Counter[tuple[QosClass, str]] = Counter()
        # Cgroups with processes that belong to no workload.
        self._others: tuple[str, ...] = ()
        self._levels: Mapping[str, str] = {}
        self._targets: Mapping[str, Target | None] = {}
        self._quota_targets: Mapping[str, Target | None] = {}
        self._memory_targets: Mapping[str, Target | None] = {}
        self._due_ns = 0

    def place(self, workloads: tuple[Workload, ...], now_ns: int) -> tuple[Workload, ...]:
        """Return *workloads* with the cgroups above them for cpu.idle and a common quota."""
        if workloads != self._given or now_ns >= self._due_ns:
            change = diff_workloads(self._given, workloads)
            self._given = workloads
            folders = frozenset(self._folders)
            self._count(change)
            if now_ns >= self._due_ns or folders != self._folders.keys():
                self._due_ns = now_ns + _SCAN_NS
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
        self._others = tuple(_other_workloads(self._layout, above, self._known, leading))

    def _rescan(self, removed: Collection[Workload]) -> None:
        # The cgroup of a removed workload may still exist and contain processes.
        above = self._above_best_effort()
        mount = self._layout.mount
        present = {
            folder: frozenset(_folders(mount / folder[1:]))
            for folder in {_parent(w.path) for w in removed} & above
        }
        left = (
            f"{folder}/{name}"
            for folder, _, name in (w.path.rpartition("/") for w in removed)
            if name in present.get(folder, ())
        )
        self._others = tuple(
            path
            for path in dict.fromkeys((*above, *self._others, *left))
            if path not in self._known and _has_others(self._layout, path, above)
        )

    def _place(self, change: WorkloadDiff) -> None:
        # A pattern stands for all workloads of a directory: only their directory matters.
        by_class: dict[QosClass, list[str]] = {qos: [] for qos in QosClass}
        for qos, folder in self._folders:
            if qos is not QosClass.BE or kubelet_writes_weight(folder) is None:
                by_class[qos].append(f"{folder}/*")
        others = (*by_class[QosClass.SYSTEM], *self._others)
        best_effort, services = by_class[QosClass.BE], by_class[QosClass.LS]
        levels = self._levels = idle_placement(best_effort, services, others, self._levels)
        before = self._targets, self._quota_targets, self._memory_targets
        self._targets = {
            _parent(path): None if level == path else self._target(level)
            for path, level in levels.items()
        }
        pure = tuple(self._pure_folders())
        # v1 would refuse quotas of the children above it.
        levels_of_quota = pure if self._layout.version == "v2" else ()
        self._quota_targets = {folder: self._target(folder) for folder in levels_of_quota}
        self._memory_targets = {folder: self._memory_target(folder) for folder in pure}
        for workload in change.removed:
            del self._placed[workload.cgroup]
        unchanged = before == (self._targets, self._quota_targets, self._memory_targets)
        for workload in change.added if unchanged else self._given:
            self._placed[workload.cgroup] = self._with_target(workload)
        self._result = tuple(self._placed[workload.cgroup] for workload in self._given)

    def _with_target(self, workload: Workload) -> Workload:
        if workload.qos is not QosClass.BE:
            return workload
        folder = _parent(workload.path)
        writes = kubelet_writes_weight(workload.path)
        level = None if writes else self._memory_targets.get(folder)
        if (memory_at := level or self._own_memory(workload)) is not None:
            workload = workload._replace(memory_at=memory_at)
        if workload.limit_memory_bytes is not None and self._has_other_memory:
            workload = workload._replace(own_memory_at=self._memory_target(workload.path))
        quota_at = None if writes else self._quota_targets.get(folder)
        if writes is not None:
            idle_at = workload.container_of
            return workload._replace(
                may_idle=not writes,
                may_own_cpus=may_own_cpus(workload.path),
                idle_at=idle_at,
                quota_at=quota_at,
            )
        target = self._targets[folder]
        if target is None and quota_at is None:
            return workload
        return workload._replace(idle_at=target, quota_at=quota_at)

    def _pure_folders(self) -> Iterator[str]:
        """Yield the directories in which everything is a best-effort workload, directly in them.

        A quota above another such directory would limit its workloads too, beyond their grants.
        """
        others = {folder for qos, folder in self._folders if qos is not QosClass.BE}
        above = {_parent(folder) for qos, folder in self._folders if qos is QosClass.BE}
        mixed = _upwards((*others, *self._others, *above))
        for qos, folder in self._folders:
            pure = folder not in mixed and folder not in self._known
            if qos is QosClass.BE and folder and pure:
                yield folder

    def _above_best_effort(self) -> set[str]:
        return _upwards(folder for qos, folder in self._folders if qos is QosClass.BE)

    def _target(self, path: str) -> Target | None:
        try:
            inode = (self._layout.mount / path[1:]).stat().st_ino
        except FileNotFoundError:  # removed just now, with all its workloads
            return None
        return Target(TargetKind.CGROUP, self._layout.hierarchy, inode, path)

    @property
    def _has_other_memory(self) -> bool:
        """Whether the memory controller has a hierarchy of its own, as on v1."""
        memory = self._memory
        return memory is not None and memory.hierarchy != self._layout.hierarchy

    def _own_memory(self, workload: Workload) -> Target | None:
        """Return the cgroup of the memory controller of a workload, or of the pod around it."""
        whole = workload.container_of
        return self._memory_target(workload.path if whole is None else whole.path)

    def _memory_target(self, path: str) -> Target | None:
        """Return the cgroup of the memory controller with the processes of *path*, if any."""
        memory = self._memory
        if memory is None or memory.mount is None:
            return None
        folder = memory.mount / path[1:]
        try:
            inode = folder.stat().st_ino
        except OSError:  # none there, or removed just now
            return None
        if self._has_other_memory and kubelet_writes_weight(f"{path}/*") is None:
            # First those that are limited: what is forked meanwhile is in the second list only.
            limited = _processes(folder)
            strange = limited - _processes(self._layout.mount / path[1:])
            if any(Path(f"/proc/{pid}").exists() for pid in strange):
                return None
        return Target(TargetKind.CGROUP, memory.hierarchy, inode, path)


def partial_idle(workloads: Iterable[Workload]) -> tuple[str, ...]:
    """Return the cgroups on which cpu.idle is set and that do not yield to every service.

    Those of kubelet are left out: the weights of kubelet's levels order them.
    """
    workloads = tuple(workloads)
    # Only the directory of a workload matters, and a thousand workloads are in a few directories.
    services = {_parent(w.path): w.path for w in workloads if w.qos is QosClass.LS}
    best_effort = [(_parent(w.path), w) for w in workloads if w.qos is QosClass.BE]
    folders = {folder for folder, _ in best_effort}
    of_kubelet = {folder for folder in folders if kubelet_writes_weight(folder) is not None}
    levels = {
        w.path if w.idle_at is None else w.idle_at.path
        for folder, w in best_effort
        if folder not in of_kubelet
    }
    whole = {
        parent: all(yields_to(level, service) for service in services.values())
        for parent, level in {_parent(level): level for level in levels}.items()
    }
    return tuple(sorted(level for level in levels if not whole[_parent(level)]))


def _other_workloads(
    layout: CgroupLayout, above: Collection[str], known: Collection[str], leading: Collection[str]
) -> Iterator[str]:
    """Yield cgroups above and beside best-effort workloads with processes of no workload."""
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
    # The folders and all directories above them, without the root.
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
        waiting = [folder]  # no recursion: the tree may be deeper than the interpreter's stack
        while waiting:
            each = waiting.pop()
            if _has_processes(each):
                return True
            waiting += (each / child for child in _folders(each))
        return False
    try:
        return "populated 1" in (folder / "cgroup.events").read_text(encoding="ascii")
    except OSError:  # gone
        return False


def _processes(folder: Path) -> set[str]:
    found: set[str] = set()
    for below, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):  # gone, or threaded (EOPNOTSUPP)
            found.update((Path(below) / "cgroup.procs").read_text(encoding="ascii").split())
    return found - {"0"}  # of another PID namespace


def _has_processes(folder: Path) -> bool:
    try:
        return bool((folder / "cgroup.procs").read_text(encoding="ascii"))
    except OSError:  # gone, or threaded (EOPNOTSUPP)
        return False


def _folders(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []
