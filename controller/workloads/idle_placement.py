# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""On which cgroup cpu.idle is set for each best-effort workload.

cpu.idle orders siblings only. An idle cgroup inside a parent of normal weight has that parent's
weight for itself, and still gets half of the machine beside the parent's siblings (measured); idle
on the parent leaves it nothing. So cpu.idle is set on an ancestor, under two conditions: there is
nothing but best-effort work below the ancestor, and the best-effort work then yields to a service
to which it would not yield otherwise. It is set no higher than that, because a service that starts
later may be placed there.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from operator import itemgetter

__all__ = ("idle_placement", "yields_to")


def idle_placement(
    best_effort: Iterable[str],
    services: Collection[str],
    others: Collection[str],
    before: Mapping[str, str],
) -> Mapping[str, str]:
    """Return the path on which cpu.idle is to be set, by the path of each best-effort workload.

    :param best_effort: paths of best-effort workloads, ``/a/b``.
    :param services: paths of latency-sensitive workloads.
    :param others: paths of cgroups that hold other processes, directly or below.
    :param before: the last result. Without any service no ancestor gains anything, so the last
        placement is kept where it is still allowed.

    >>> dict(idle_placement(["/batch/a", "/batch/b"], ["/web"], [], {}))
    {'/batch/a': '/batch', '/batch/b': '/batch'}
    >>> dict(idle_placement(["/batch/a"], ["/web"], ["/batch/cron"], {}))
    {'/batch/a': '/batch/a'}
    """
    mixed = {level for path in (*services, *others) for level in (path, *_upwards(path))}
    below = Counter(level for path in services for level in _upwards(path))

    @cache  # a thousand pods are in a handful of cgroups
    def best_ancestor(parent: str) -> tuple[int, str]:
        # The first of equals, which is the lowest.
        ancestors = ((below[_parent(level)], level) for level in _unmixed(parent, mixed))
        return max(ancestors, key=itemgetter(0), default=(0, ""))

    levels = {}
    for path in best_effort:
        parent = _parent(path)
        if services:
            services_below, ancestor = best_ancestor(parent)
            levels[path] = ancestor if services_below > below[parent] else path
        else:
            kept = before.get(path, path)
            levels[path] = kept if kept in _unmixed(parent, mixed) else path
    return levels


def yields_to(level: str, service: str) -> bool:
    """Return whether cpu.idle on *level* makes it yield to the workload at *service*.

    >>> yields_to("/kube/besteffort", "/kube/burstable/pod1")
    True
    >>> yields_to("/batch/a", "/web")
    False
    """
    return service.startswith(f"{_parent(level)}/")


def _unmixed(path: str, mixed: Collection[str]) -> Iterator[str]:
    # *path* and its ancestors up to the first with other work in it; never the root.
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
