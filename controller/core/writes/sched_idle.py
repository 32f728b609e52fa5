# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sched-idle for best-effort work: when it is on, and on which cgroup cpu.idle is set.

cpu.idle orders siblings only. An idle cgroup inside a parent of normal weight has that parent's
weight for itself, and still gets half of the machine beside the parent's siblings (measured); idle
on the parent leaves it nothing. So cpu.idle is set on an ancestor, under two conditions: there is
nothing but best-effort work below the ancestor, and the best-effort work then yields to a service
to which it would not yield otherwise. It is set no higher than that, because a service that starts
later may be placed there.

The exception are cgroups whose weight another program writes, such as those of kubelet: the kernel
refuses a weight for an idle cgroup, and kubelet does not start after such a refusal. They get the
lowest weight instead (``Workload.may_idle``), or stay as they are.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from operator import itemgetter

from controller.core.channels.ladder import TickContext
from controller.core.decision import Action
from controller.core.model import Knob
from controller.core.pace.limiters import HoldOffLatch
from controller.core.units import NS_PER_SEC

__all__ = (
    "HOLD_NS",
    "SchedIdlePolicy",
    "idle_placement",
    "yields_to",
)

# How long a knob of two states stays on after it was last needed.
HOLD_NS = 60 * NS_PER_SEC


class SchedIdlePolicy:
    """On while a service is present whose profile wants sched-idle, and a minute longer.

    ``on`` is the decision of the last tick.
    """

    __slots__ = ("_latch", "on")

    def __init__(self) -> None:
        self._latch = HoldOffLatch(HOLD_NS)
        self.on = False

    def end_hold(self) -> None:
        """End the hold-off: if the new profiles do not want sched-idle, it ends at once."""
        self._latch = HoldOffLatch(HOLD_NS)

    def actions(self, safe: bool, restore: bool, context: TickContext) -> list[Action]:
        """Return the writes of this tick.

        In a tick without data (*safe*) the decision stays, or ends on *restore*. On a resync every
        cgroup is checked, also if the decision did not change.
        """
        index, was = context.workload_index, self.on
        if safe:
            self.on = was and not restore
        else:
            wanted = any(profile.sched_idle for profile in index.profiles)
            self.on = self._latch.update(wanted, context.now_ns)
        if self.on is was and not context.resync:
            return []
        return context.knobs.switch(
            self.on,
            Knob.SCHED_IDLE,
            index.idle_targets,
            "a latency-sensitive service is present: sched-idle for best-effort",
            "restore cpu.idle and the weight: sched-idle is off now",
            context.now_ns,
        )


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
