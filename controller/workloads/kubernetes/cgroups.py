# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where kubelet put the cgroups of pods, found by looking, never by building a path.

kubelet makes ``kubepods`` below its ``--cgroup-root``, in it one cgroup per QoS class, and in
these one per pod (Guaranteed pods lie directly below ``kubepods``). With the systemd driver
every level carries the names of those above it and ends in ``.slice`` and dashes of a pod's id
become underscores (pkg/kubelet/cm/cgroup_manager_linux.go). Containers lie below their pod,
named by the runtime: the id alone, or ``cri-containerd-ID.scope``, ``crio-ID.scope``.
"""

from collections.abc import Iterator
import os
from pathlib import Path
import re
from typing import NamedTuple

__all__ = ("PodCgroup", "find_pod_cgroups", "find_roots")

_ROOT = re.compile(r"(?:.+-)?kubepods(?:\.slice)?")
_QOS_LEVEL = re.compile(r"(?:(?:.+-)?kubepods-)?(besteffort|burstable)(?:\.slice)?")
_POD_LEVEL = re.compile(
    r"(?:(?:.+-)?kubepods(?:-besteffort|-burstable)?-)?pod([0-9a-f_-]{32,36})(?:\.slice)?"
)
_QOS_CLASSES = {"besteffort": "BestEffort", "burstable": "Burstable"}
# A custom --cgroup-root with three levels, as in a node that is itself a container.
_DEEPEST_ROOT = 4


class PodCgroup(NamedTuple):
    """The cgroup of a pod: id of the pod, path below the mount, kernfs id, QoS class by path."""

    uid: str
    path: str
    inode: int
    qos_class: str


def find_roots(mount: Path) -> tuple[str, ...]:
    """Return the paths of every ``kubepods`` below *mount*, outermost first.

    Several are possible: a node that runs nodes in containers. Nothing below a root is looked
    at, so a pod that makes such a cgroup inside itself is not taken for a root.
    """
    found: list[str] = []
    level = [""]
    for _ in range(_DEEPEST_ROOT):
        below: list[str] = []
        for parent in level:
            for name, _ in _directories(mount, parent):
                path = f"{parent}/{name}"
                (found if _ROOT.fullmatch(name) else below).append(path)
        level = below
    return tuple(found)


def find_pod_cgroups(mount: Path, roots: tuple[str, ...]) -> Iterator[PodCgroup]:
    """Yield every pod's cgroup below *roots*; a root that is gone yields nothing."""
    for root in roots:
        for name, inode in _directories(mount, root):
            if match := _QOS_LEVEL.fullmatch(name):
                qos_class = _QOS_CLASSES[match[1]]
                parent = f"{root}/{name}"
                for child, child_inode in _directories(mount, parent):
                    yield from _pod(f"{parent}/{child}", child, child_inode, qos_class)
            else:
                yield from _pod(f"{root}/{name}", name, inode, "Guaranteed")


def _pod(path: str, name: str, inode: int, qos_class: str) -> Iterator[PodCgroup]:
    if match := _POD_LEVEL.fullmatch(name):
        yield PodCgroup(match[1].replace("_", "-"), path, inode, qos_class)


def _directories(mount: Path, path: str) -> list[tuple[str, int]]:
    try:
        with os.scandir(mount / path[1:]) as entries:
            return sorted(
                (entry.name, entry.inode())
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
