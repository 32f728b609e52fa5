# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: pods beside the workloads that the configuration names, no cgroup twice."""

from collections.abc import Iterator

from controller.model import Workload

__all__ = ("beside",)


def beside(
    configured: tuple[Workload, ...], pods: tuple[Workload, ...]
) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
    """Return both without the pods that share cgroups with *configured*, and what was left out.

    What is done to a cgroup is done to all in it, so no workload may lie in another. The
    configuration is the administrator's word; the pods give way.
    """
    if not configured:
        return pods, ()
    owners = {workload.path: workload for workload in configured}
    above = {level: workload for workload in configured for level in _above(workload.path)}
    kept, conflicts = [], []
    for pod in pods:
        other = above.get(pod.path)
        for level in (pod.path, *_above(pod.path)):
            other = other or owners.get(level)
        if other is None:
            kept.append(pod)
        else:
            conflicts.append(
                f"{pod.name}: left to the configured workload {other.name!r}, which has "
                f"{other.path}"
            )
    return (*configured, *kept), tuple(conflicts)


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
