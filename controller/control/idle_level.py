# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: on which cgroup sched-idle belongs, so that best-effort work gives way to services.

cpu.idle orders siblings. An idle cgroup inside a parent of normal weight shares that parent's
weight with nobody and still gets half of the machine beside the parent's siblings (measured);
idle on the parent leaves it nothing. So idle goes up, as long as there is nothing but
best-effort work below and it gains a service to give way to; and no further, because a service
that is started later may find its place there.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from operator import itemgetter

__all__ = ("gives_way", "idle_levels")


def idle_levels(
    best_effort: Iterable[str],
    services: Collection[str],
    others: Collection[str],
    before: Mapping[str, str],
) -> Mapping[str, str]:
    """Return for the path of each best-effort workload the path on which idle is to be set.

    :param best_effort: paths of best-effort workloads, ``/a/b``.
    :param services: paths of latency-sensitive workloads.
    :param others: paths of cgroups with other processes in them, or somewhere below.
    :param before: the last answer; without a service there is nothing to go by, so it stays.

    >>> dict(idle_levels(["/batch/a", "/batch/b"], ["/web"], [], {}))
    {'/batch/a': '/batch', '/batch/b': '/batch'}
    >>> dict(idle_levels(["/batch/a"], ["/web"], ["/batch/cron"], {}))
    {'/batch/a': '/batch/a'}
    """
    mixed = {level for path in (*services, *others) for level in (path, *_upwards(path))}
    below = Counter(level for path in services for level in _upwards(path))

    @cache  # a thousand pods lie in a handful of cgroups
    def best_above(parent: str) -> tuple[int, str]:
        # The first of equals, which is the lowest.
        above = ((below[_parent(level)], level) for level in _unmixed(parent, mixed))
        return max(above, key=itemgetter(0), default=(0, ""))

    levels = {}
    for path in best_effort:
        parent = _parent(path)
        if services:
            services_below, above = best_above(parent)
            levels[path] = above if services_below > below[parent] else path
        else:
            kept = before.get(path, path)
            levels[path] = kept if kept in _unmixed(parent, mixed) else path
    return levels


def gives_way(level: str, service: str) -> bool:
    """Return whether idle on *level* makes it give way to the workload at *service*.

    >>> gives_way("/kube/besteffort", "/kube/burstable/pod1")
    True
    >>> gives_way("/batch/a", "/web")
    False
    """
    return service.startswith(f"{_parent(level)}/")


def _unmixed(path: str, mixed: Collection[str]) -> Iterator[str]:
    # *path* and what is above, up to the first with other work in it; never the root.
    while path and path not in mixed:
        yield path
        path = _parent(path)


def _upwards(path: str) -> Iterator[str]:
    # "/a/b/c" has "/a/b", "/a" and "", the root.
    while path:
        path = _parent(path)
        yield path


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
