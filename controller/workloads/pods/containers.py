# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The containers of a pod as workloads in its place, on cgroup v1.

The kernel refuses a quota of a cgroup above that of its parent there (kernel/sched/core.c,
tg_cfs_schedulable_down). With a quota of ours on a pod every container with a limit would fail to
start, and so would an in-place resize. A container has no such children, and its own limit may be
anywhere above its quota. So the workloads of a best-effort pod with CPU requests or limits are its
containers. The pod is one again where it is evicted, ordered by weight, or limited on a link
(``Workload.container_of``).
"""

from collections.abc import Iterable
import re

from controller.core.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.host.facts import CgroupLayout
from controller.host.names import printable_name
from controller.workloads.pods.cgroups import PodCgroup

__all__ = ("container_workloads", "is_divided")

_NAME = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?")


def is_divided(pod: Workload, cgroup: PodCgroup, layout: CgroupLayout) -> bool:
    """Return whether the workloads of *pod* are its containers.

    No container of the QoS class BestEffort has a CPU limit, or gets one by a resize.
    """
    may_have_limits = cgroup.qos_class != "BestEffort"
    return layout.version == "v1" and may_have_limits and pod.qos is QosClass.BE


def container_workloads(
    pod: Workload, containers: Iterable[tuple[str, int]], before: Iterable[Workload]
) -> tuple[Workload, ...]:
    """Return the workloads in place of *pod*; one that is equal to one *before* is that object.

    :param containers: the names and kernfs ids of the cgroups in that of the pod.
    """
    whole = Target(TargetKind.CGROUP, *pod.cgroup, pod.path)
    known = {each.cgroup.id: each for each in before}
    found = (
        pod._replace(
            name=f"{pod.name}/{_container_name(name)}",
            cgroup=CgroupId(pod.cgroup.hierarchy, inode),
            path=f"{pod.path}/{name}",
            container_of=whole,
        )
        for name, inode in containers
    )
    return tuple(
        old if (old := known.get(each.cgroup.id)) is not None and old == each else each
        for each in found
    )


def _container_name(folder: str) -> str:
    # The first 12 digits of the container's id, as the tools of runtimes print it.
    found = _NAME.fullmatch(folder)
    return printable_name(folder) if found is None else found[1]
