# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cgroups of pods, found by listing directories; no path is built from a name of a pod.

kubelet makes ``kubepods`` below its ``--cgroup-root``, in it one cgroup per QoS class, and in
these one per pod (Guaranteed pods lie directly below ``kubepods``). With the systemd driver
the name of every level contains the names of the levels above it and ends in ``.slice``, and
dashes in the id of a pod become underscores (pkg/kubelet/cm/cgroup_manager_linux.go). The id has
any form, see ``pod.py``. The cgroups of containers lie below their pod and are named by the
runtime, see ``containers.py``.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import chain
import os
from pathlib import Path
import re
from typing import NamedTuple

from controller.core.units import NS_PER_SEC

__all__ = (
    "PodCgroup",
    "PodCgroups",
    "find_roots",
    "kubelet_writes_weight",
    "may_own_cpus",
)

_ROOT = re.compile(r"(?:.+-)?kubepods(?:\.slice)?")
_QOS_LEVEL = re.compile(r"(?:(?:.+-)?kubepods-)?(besteffort|burstable)(?:\.slice)?")
_POD_LEVEL = re.compile(
    r"pod([0-9A-Za-z][0-9A-Za-z.:-]{0,190})"
    r"|(?:.+-)?kubepods(?:-besteffort|-burstable)?-pod([0-9A-Za-z][0-9A-Za-z.:_]{0,190})\.slice"
)
_QOS_CLASSES = {"besteffort": "BestEffort", "burstable": "Burstable"}
# A custom --cgroup-root with three levels, as in a node that is itself a container.
_MAX_ROOT_DEPTH = 4
# How often roots are searched. They seldom change, but kubelet may start after the agent. At these
# times all levels are listed as well, also if no change was reported.
_SEARCH_NS = 30 * NS_PER_SEC
_SEARCH_FIRST_NS = 2 * NS_PER_SEC
_CONTAINERS_NS = NS_PER_SEC
# Containers of a pod start in its first seconds. So those of new pods are listed in every scan, of
# so many pods at most.
_NEW_NS, _MOST_NEW = 30 * NS_PER_SEC, 16


class PodCgroup(NamedTuple):
    """The cgroup of a pod: uid of the pod, path below the mount, kernfs id, QoS class by path."""

    uid: str
    path: str
    inode: int
    qos_class: str


def find_roots(mount: Path) -> tuple[str, ...]:
    """Return the paths of every ``kubepods`` below *mount*, outermost first.

    Several exist where a node runs other nodes in containers. Directories below a root are not
    searched, so a cgroup of that name that a pod makes inside itself is not taken for a root. The
    same holds for a directory of another owner than *mount* (root): a user with a delegated cgroup
    can make directories with the names and uids of real pods in it.
    """
    found: list[str] = []
    owner = _owner(mount)
    level = [""]
    for _ in range(_MAX_ROOT_DEPTH):
        below: list[str] = []
        for parent in level:
            for name, _ in _directories(mount, parent):
                path = f"{parent}/{name}"
                if not _ROOT.fullmatch(name):
                    below.append(path)
                elif owner is not None and _owner(mount / path[1:]) == owner:
                    found.append(path)
        level = below
    return tuple(sorted(found, key=lambda path: (path.count("/"), path)))


def kubelet_writes_weight(path: str) -> bool | None:
    """Return whether kubelet or its runtime writes the weight of the cgroup while it has processes.

    ``None``: the cgroup is not below ``kubepods``.

    kubelet writes the weight of ``kubepods`` and of its QoS levels at its start and every minute
    (pkg/kubelet/cm/qos_container_manager_linux.go), and that of a Burstable or Guaranteed pod at a
    resize (pkg/kubelet/kuberuntime/kuberuntime_manager.go). The runtime writes that of a container
    at each update (libcontainer's ``Set``). The cgroup of a BestEffort pod, which has no requests
    that could be resized, gets its weight before its first process.
    """
    names = _below_root(path)
    if names is None:
        return None
    match names:
        case [level, pod] if _POD_LEVEL.fullmatch(pod):
            found = _QOS_LEVEL.fullmatch(level)
            return found is None or found[1] != "besteffort"
    return True


def may_own_cpus(path: str) -> bool:
    """Return whether the cgroup is of a Guaranteed pod, which kubelet may give CPUs of its own.

    Such a pod is directly below ``kubepods``, others are in the level of their QoS class.
    """
    names = _below_root(path)
    return bool(names and not _QOS_LEVEL.fullmatch(names[0]))


def _below_root(path: str) -> list[str] | None:
    """Return the names of *path* below ``kubepods``; ``None``: it is not below it."""
    if "kubepods" not in path:  # most of the time: matching each name takes ten times as long
        return None
    names = iter(path.split("/"))
    return list(names) if any(_ROOT.fullmatch(name) for name in names) else None


class PodCgroups:
    """Scans for the cgroups of pods; an unchanged cgroup is the same object in the next scan.

    Each directory is listed in every scan, which takes a millisecond with a thousand pods, unless
    *changes* reports that no cgroup was added or removed. Modification times cannot replace the
    listing: kernfs keeps them only where user space set one (fs/kernfs/dir.c, ``ps_iattr``).

    :param mount: mount point of the hierarchy.
    :param roots: the cgroups that contain pods; ``None``: every ``kubepods`` that is found.
    :param changes: returns a number that changes when a cgroup is added or removed, or ``None``
        where that is not measured.
    """

    def __init__(
        self,
        mount: Path,
        roots: tuple[str, ...] | None = None,
        changes: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._mount = mount
        self._changes = changes
        # The numbers at the last two scans. A change is reported an instant before it is visible,
        # so one more scan lists the directories.
        self._seen: tuple[int | None, int | None] = (None, None)
        self._given = roots
        self._roots = roots or ()
        self._due_ns = 0
        self._levels: dict[str, _Level] = {}
        self._found: Mapping[str, tuple[PodCgroup, ...]] = {}
        self._containers: dict[PodCgroup, list[_Entry]] = {}
        self._containers_due_ns = self._scanned_ns = 0
        self._new: dict[PodCgroup, int] = {}  # when their containers were listed first
        self._behind = False  # whether a scan since then did not list the containers

    def scan(self, now_ns: int, told: Collection[str] = ()) -> Mapping[str, tuple[PodCgroup, ...]]:
        """Return the present cgroups of pods by root; the same object if nothing changed.

        :param told: the uids of pods with a container that was made since the last scan.
        """
        self._scanned_ns = now_ns
        now = self._changes()
        before, self._seen = self._seen, (now, self._seen[0])
        if now_ns >= self._due_ns:
            if self._given is None:
                self._roots = find_roots(self._mount)
            self._due_ns = now_ns + (_SEARCH_NS if self._roots else _SEARCH_FIRST_NS)
        elif (
            now is not None
            and not told
            and before == (now, now)
            and not (self._behind and now_ns >= self._containers_due_ns)
        ):
            return self._found
        levels: dict[str, _Level] = {}
        below: dict[str, list[_Level]] = {}
        for root in self._roots:
            top = levels[root] = self._list(root, "Guaranteed")
            below[root] = [top]
            for path, qos_class in top.qos_levels:
                level = levels[path] = self._list(path, qos_class)
                below[root].append(level)
        self._behind = bool(self._containers) and now_ns < self._containers_due_ns
        if not self._behind:
            self._containers_due_ns = now_ns + _CONTAINERS_NS
        self._new = {
            pod: first_ns
            for pod, first_ns in [*self._new.items()][-_MOST_NEW:]
            if now_ns - first_ns < _NEW_NS
        }
        containers = {
            pod: known
            if self._behind and pod.uid not in told and pod not in self._new
            else _directories(self._mount, pod.path)
            for pod, known in self._containers.items()
            if _contains(levels, pod)
        }
        if levels != self._levels or containers != self._containers:
            self._levels = levels
            self._containers = containers
            self._found = {
                root: tuple(chain.from_iterable(level.pods.values() for level in found))
                for root, found in below.items()
            }
        return self._found

    def levels(self, root: str, qos_class: str) -> tuple[str, ...]:
        """Return the cgroups below *root* with the pods of a QoS class, as of the last scan."""
        top = self._levels.get(root)
        return tuple(path for path, found in top.qos_levels if found == qos_class) if top else ()

    def containers(self, pod: PodCgroup) -> list[tuple[str, int]]:
        """Return name and kernfs id of each cgroup in that of *pod*, see ``containers.py``.

        From the first call on, a change among them is a change of a ``scan`` within a second, or of
        the next one for a pod that is new or told. To list them takes 20 us for each pod, too much
        for every scan.
        """
        if pod not in self._containers:
            self._containers[pod] = _directories(self._mount, pod.path)
            self._new[pod] = self._scanned_ns
        return self._containers[pod]

    def _list(self, path: str, qos_class: str) -> "_Level":
        listing = _directories(self._mount, path)
        before = self._levels.get(path)
        if before is not None and before.listing == listing:
            return before
        return _level(path, qos_class, listing, {} if before is None else before.pods)


_Entry = tuple[str, int]


class _Level(NamedTuple):
    """A cgroup that contains pods: its listing, and the pods and QoS levels in it."""

    listing: list[_Entry]
    pods: dict[_Entry, PodCgroup]
    qos_levels: tuple[tuple[str, str], ...]


def _level(
    path: str, qos_class: str, listing: list[_Entry], known: Mapping[_Entry, PodCgroup]
) -> _Level:
    pods: dict[_Entry, PodCgroup] = {}
    qos_levels = []
    for entry in listing:
        if (pod := known.get(entry)) is not None:
            pods[entry] = pod
            continue
        name, inode = entry
        below = f"{path}/{name}"
        if match := _POD_LEVEL.fullmatch(name):
            uid = match[1] or match[2].replace("_", "-")
            pods[entry] = PodCgroup(uid, below, inode, qos_class)
        elif qos_class == "Guaranteed" and (match := _QOS_LEVEL.fullmatch(name)):
            qos_levels.append((below, _QOS_CLASSES[match[1]]))
    return _Level(listing, pods, tuple(qos_levels))


def _contains(levels: Mapping[str, _Level], pod: PodCgroup) -> bool:
    parent, _, name = pod.path.rpartition("/")
    level = levels.get(parent)
    return level is not None and (name, pod.inode) in level.pods


def _owner(directory: Path) -> int | None:
    try:
        return directory.stat(follow_symlinks=False).st_uid
    except FileNotFoundError:
        return None


def _directories(mount: Path, path: str) -> list[_Entry]:
    # Not sorted: the kernel's order is the same as long as nothing changes.
    try:
        with os.scandir(mount / path[1:]) as entries:
            return [(e.name, e.inode()) for e in entries if e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
