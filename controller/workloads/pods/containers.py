# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The containers of a pod as workloads in its place, on cgroup v1.

The kernel refuses a quota of a cgroup above that of its parent there (kernel/sched/core.c,
tg_cfs_schedulable_down). With a quota of ours on a pod every container with a limit would fail to
start, and so would an in-place resize. A container has no such children, and its own limit may be
anywhere above its quota. So the workloads of a best-effort pod with CPU requests or limits are its
containers, and so are those of a pod whose containers have limits of a plugin of the runtime. The
pod is one again where it is evicted, ordered by weight, or limited on a link
(``Workload.container_of``).

Which cgroups in that of a pod are its containers:

- One whose name has the id of a container in the pod's status: ``ID``, ``cri-containerd-ID.scope``,
  ``crio-ID.scope``. Others are the sandbox, and helpers of the runtime such as the
  ``crio-conmon-ID`` of cri-o, whose name has the id of its container too.
- The status may be late. So a cgroup counts that is newer than all containers of the status and
  has the usual name of one. The sandbox is older than its containers, and counts until the status
  has one of them.
"""

from collections.abc import Collection, Iterable, Iterator
import re

from controller.core.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.host.facts import CgroupLayout
from controller.host.names import printable_name
from controller.workloads.pods.cgroups import PodCgroup

__all__ = ("container_workloads", "has_container", "is_divided", "shown_container")

# The ids that all runtimes give today, and the names of helpers before them.
_USUAL_ID = re.compile(r"[0-9a-f]{64}")
_HELPERS = ("conmon",)
_SHOWN_CHARS = 12


def is_divided(pod: Workload, cgroup: PodCgroup, layout: CgroupLayout, limited: bool) -> bool:
    """Return whether the workloads of *pod* are its containers.

    No container of the QoS class BestEffort has a CPU limit of kubelet, or gets one by a resize.
    *limited*: a plugin of the container runtime gave it one (``RuntimePod``).
    """
    may_have_limits = limited or cgroup.qos_class != "BestEffort"
    return layout.version == "v1" and may_have_limits and pod.qos is QosClass.BE


def has_container(ids: Collection[str], cgroups: Iterable[tuple[str, int]]) -> bool:
    """Return whether one of *cgroups* (name, kernfs id) is a container with one of *ids*."""
    return any(_id(name, ids) in ids for name, _ in cgroups)


def shown_container(folder: str) -> str:
    """Return what a reader calls the cgroup *folder* in that of a workload.

    The first digits of its id are what ``crictl ps`` shows of a container.
    """
    container = _id(folder, ())
    is_container = _USUAL_ID.fullmatch(container) is not None
    return f"container {container[:_SHOWN_CHARS]}" if is_container else f"its cgroup {folder}"


def container_workloads(
    pod: Workload,
    ids: Collection[str],
    cgroups: Collection[tuple[str, int]],
    before: Iterable[Workload],
) -> tuple[Workload, ...]:
    """Return the workloads in place of *pod*; one that is equal to one *before* is that object.

    :param ids: the ids of the containers in the pod's status.
    :param cgroups: the names and kernfs ids of the cgroups in that of the pod.
    """
    whole = Target(TargetKind.CGROUP, *pod.cgroup, pod.path)
    known = {each.cgroup.id: each for each in before}
    found = (
        pod._replace(
            name=f"{pod.name}/{printable_name(container[:_SHOWN_CHARS])}",
            cgroup=CgroupId(pod.cgroup.hierarchy, inode),
            path=f"{pod.path}/{name}",
            container_of=whole,
        )
        for container, name, inode in _containers(ids, cgroups)
    )
    return tuple(
        old if (old := known.get(each.cgroup.id)) is not None and old == each else each
        for each in found
    )


def _containers(
    ids: Collection[str], cgroups: Collection[tuple[str, int]]
) -> Iterator[tuple[str, str, int]]:
    """Yield id, name and kernfs id of each container; the module says how it is known."""
    # The kernel numbers cgroups in the order in which they are made (__kernfs_new_node in
    # fs/kernfs/dir.c).
    newest = max((inode for name, inode in cgroups if _id(name, ids) in ids), default=0)
    for name, inode in cgroups:
        container = _id(name, ids)
        if container in ids or (inode > newest and _USUAL_ID.fullmatch(container)):
            yield container, name, inode


def _id(folder: str, ids: Collection[str]) -> str:
    """Return the id in the name *folder*, one of *ids* if possible; empty for a helper's cgroup."""
    name = folder.removesuffix(".scope")
    usual = name.rpartition("-")[2]
    found = next((each for each in ids if name == each or name.endswith(f"-{each}")), usual)
    is_helper = any(word in _HELPERS for word in name.removesuffix(found).split("-"))
    return "" if is_helper else found
