# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: on which cgroup sched-idle belongs, so that best-effort work gives way to services.

cpu.idle orders siblings. An idle cgroup inside a parent of normal weight shares that parent's
weight with nobody and still gets half of the machine beside the parent's siblings (measured);
idle on the parent leaves it nothing. So idle goes on the highest cgroup that holds nothing but
best-effort work. It gives way to every service below that cgroup's parent, and to no other.
"""

from collections.abc import Collection, Iterable, Mapping

__all__ = ("gives_way", "idle_levels")


def idle_levels(
    best_effort: Iterable[str], others: Collection[str], strangers: Collection[str]
) -> Mapping[str, str]:
    """Return for the path of each best-effort workload the path on which idle is to be set.

    :param best_effort: paths of best-effort workloads, ``/a/b``.
    :param others: paths of all other workloads.
    :param strangers: paths of cgroups that have processes of their own, or processes somewhere
        below, and neither are, hold nor lie in a workload; also those that hold workloads and
        have processes beside them. The root is always one.

    >>> dict(idle_levels(["/batch/a", "/batch/b"], ["/web"], []))
    {'/batch/a': '/batch', '/batch/b': '/batch'}
    >>> dict(idle_levels(["/batch/a"], ["/web"], ["/batch/cron"]))
    {'/batch/a': '/batch/a'}
    """
    mixed = {ancestor for path in others for ancestor in _upwards(path)}
    mixed.update(ancestor for path in strangers for ancestor in (path, *_upwards(path)))
    mixed.add("")
    levels = {}
    for path in best_effort:
        level = path
        while (parent := level.rpartition("/")[0]) not in mixed:
            level = parent
        levels[path] = level
    return levels


def gives_way(level: str, service: str) -> bool:
    """Return whether idle on *level* makes it give way to the workload at *service*.

    >>> gives_way("/kube/besteffort", "/kube/burstable/pod1")
    True
    >>> gives_way("/batch/a", "/web")
    False
    """
    return service.startswith(f"{level.rpartition('/')[0]}/")


def _upwards(path: str) -> Iterable[str]:
    # "/a/b/c" has "/a/b", "/a" and "", the root.
    while path:
        path = path.rpartition("/")[0]
        yield path
