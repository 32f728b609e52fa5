# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Bounds how many new workloads of the configuration one scan takes.

A tenant that may make cgroups below a pattern can make and remove a thousand per second. Each
workload that is taken costs the tick a few hundred microseconds: a slot of the sched probe, and
files of knobs. So the rest waits for the next scans. Latency-sensitive workloads never wait, and
neither do pods, which kubelet bounds.
"""

from collections import Counter
from collections.abc import Mapping

from controller.core.model import CgroupId, QosClass, Workload
from controller.workloads.changes import tenant

__all__ = ("Intake",)

_MOST = 128


class Intake:
    """Selects the workloads of a scan that have to wait for a later one.

    ``waiting`` are these workloads, the longest waiting ones first, and ``counts`` their numbers.
    All workloads of the first scan are taken, because no tick is late before the first one.
    """

    def __init__(self) -> None:
        self._taken: set[CgroupId] | None = None
        self.waiting: Mapping[CgroupId, Workload] = {}
        self.counts: Mapping[QosClass, int] = {}

    def update(self, found: tuple[Workload, ...]) -> None:
        """Take all latency-sensitive workloads of *found*, and up to 128 others that are new.

        The tenants take turns, and of each the workloads that have waited longest are first.
        """
        others = {each.cgroup: each for each in found if each.qos is not QosClass.LS}
        if self._taken is None:
            self._taken = set(others)
            return
        self._taken &= others.keys()
        waiting = {each: others[each] for each in self.waiting if each in others}
        waiting |= {c: w for c, w in others.items() if c not in self._taken and c not in waiting}
        turns: Counter[str] = Counter()
        ranks: dict[CgroupId, int] = {}
        for cgroup, workload in waiting.items():
            ranks[cgroup] = turns[name := tenant(workload)]
            turns[name] += 1
        for cgroup in sorted(ranks, key=lambda each: ranks[each])[:_MOST]:
            self._taken.add(cgroup)
            del waiting[cgroup]
        self.waiting = waiting
        self.counts = Counter(each.qos for each in waiting.values())
