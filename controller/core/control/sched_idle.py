# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is set once and stays: sched-idle for best-effort, burst for services that ask for it.

PURE: on which cgroup sched-idle belongs, so that best-effort work gives way to services.

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

from controller.core.control.knob_state import KnobState
from controller.core.control.limiters import HoldOffLatch
from controller.core.decision import Action
from controller.core.knob_values import Quota, format_quota, parse_quota
from controller.core.model import Knob, KnobValue
from controller.core.settings import Profile
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex

__all__ = (
    "SchedIdlePolicy",
    "burst_actions",
    "idle_placement",
    "yields_to",
)

_HOLD_NS = 60 * NS_PER_SEC
_LONGEST_NS = 3600 * NS_PER_SEC
_IDLE = KnobValue("1")


class SchedIdlePolicy:
    """On while a service is present whose profile wants it, and a minute longer."""

    __slots__ = ("_latch", "on")

    def __init__(self) -> None:
        self._latch = HoldOffLatch(_HOLD_NS, _LONGEST_NS)
        self.on = False

    def end_hold(self) -> None:
        """Let what new profiles do not want end at once, without its minute."""
        self._latch = HoldOffLatch(_HOLD_NS, _LONGEST_NS)

    def actions(
        self,
        profiles: tuple[Profile, ...],
        workload_index: WorkloadIndex,
        knobs: KnobState,
        resync: bool,
        now_ns: int,
    ) -> list[Action]:
        """Return the writes that follow from who is here."""
        on = self._latch.update(any(profile.sched_idle for profile in profiles), now_ns)
        return self._set(on, workload_index, knobs, resync, now_ns)

    def safe_actions(
        self,
        restore: bool,
        workload_index: WorkloadIndex,
        knobs: KnobState,
        resync: bool,
        now_ns: int,
    ) -> list[Action]:
        """Return the writes without data: where it is, it stays, unless all is to be restored."""
        return self._set(self.on and not restore, workload_index, knobs, resync, now_ns)

    def _set(
        self, on: bool, workload_index: WorkloadIndex, knobs: KnobState, resync: bool, now_ns: int
    ) -> list[Action]:
        if on is self.on and not resync:
            return []
        self.on = on
        actions = []
        for scope, id_ in workload_index.idle_targets:
            if on:
                text = "a latency-sensitive service is present: sched-idle for best-effort"
                action = knobs.request(scope, id_, Knob.SCHED_IDLE, _IDLE, text, now_ns)
            else:
                text = "sched-idle is not wanted now: the old weight is back"
                action = knobs.restore(scope, id_, Knob.SCHED_IDLE, text, now_ns)
            if action is not None:
                actions.append(action)
        return actions


def burst_actions(workload_index: WorkloadIndex, knobs: KnobState, now_ns: int) -> list[Action]:
    """Return the writes that let services save up quota that they did not use.

    Only where the operator gave them a quota, which stays as it is: a burst is at most the quota
    (kernel/sched/core.c, tg_set_cfs_bandwidth).
    """
    actions = []
    for service in workload_index.services.values():
        for scope, id_ in service.cgroups:
            key = (scope, id_, Knob.CPU_QUOTA)
            original = knobs.original(*key)
            quota = None if original is None else parse_quota(original)
            if quota is None:
                continue
            burst_us = service.profile.cpu_burst_us
            if quota.quota_us is None or burst_us <= quota.burst_us:
                action = knobs.restore(*key, "no burst is wanted now", now_ns)
            else:
                wanted = Quota(quota.quota_us, quota.period_us, min(burst_us, quota.quota_us))
                text = f"profile {service.profile.name}: a burst of {wanted.burst_us} us"
                action = knobs.request(*key, format_quota(wanted), text, now_ns)
            if action is not None:
                actions.append(action)
    return actions


def idle_placement(
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


def yields_to(level: str, service: str) -> bool:
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
