# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The difference between two lists of workloads, and the tenant of a workload.

Of 1,000 workloads a handful changes in a second. A component that keeps state per workload receives
the full list at every scan and applies the difference to the previous list, so the next scan
repairs a missed one. Objects are compared by identity first, because unchanged workloads keep their
object.
"""

from operator import attrgetter
from typing import NamedTuple

from controller.core.model import QosClass, Workload

__all__ = ("WorkloadDiff", "diff_workloads", "tenant")


def tenant(workload: Workload) -> str:
    """Return the rule of a configured workload, or the namespace of a pod.

    It is the first part of the name, which is ``rule:cgroup`` or ``namespace/pod``.
    """
    return workload.name.partition("/")[0].partition(":")[0]


class WorkloadDiff(NamedTuple):
    """Difference between two lists of workloads.

    A workload of which a field changed (its class, its name) is in ``removed`` with the old fields
    and in ``added`` with the new ones.
    """

    added: tuple[Workload, ...]
    removed: tuple[Workload, ...]

    def of_class(self, qos: QosClass) -> "WorkloadDiff":
        """Return the difference among workloads of class *qos*; leaving the class is a removal."""
        return WorkloadDiff(*(tuple(w for w in part if w.qos is qos) for part in self))

    def by_fields(self, *fields: str) -> "WorkloadDiff":
        """Return the difference where only *fields* are compared; other changes are left out."""
        key = attrgetter(*fields)
        removed, added = set(map(key, self.removed)), set(map(key, self.added))
        return WorkloadDiff(
            tuple(w for w in self.added if key(w) not in removed),
            tuple(w for w in self.removed if key(w) not in added),
        )


_Workloads = tuple[Workload, ...]
# The last comparison, because many components compare the same two lists.
_last: tuple[_Workloads, _Workloads, WorkloadDiff] = ((), (), WorkloadDiff((), ()))


def diff_workloads(before: _Workloads, after: _Workloads) -> WorkloadDiff:
    """Return the workloads that are in only one of *before* and *after*.

    ``added`` is in the order of *after*, ``removed`` in that of *before*. The comparison is fast
    where unchanged workloads are the same objects, and correct where they are only equal.
    """
    global _last
    last = _last
    if last[0] is before and last[1] is after:
        return last[2]
    diff = _compare(before, after)
    _last = before, after, diff
    return diff


def _compare(before: _Workloads, after: _Workloads) -> WorkloadDiff:
    unmatched = dict(zip(map(id, before), before, strict=True))
    added = [workload for workload in after if unmatched.pop(id(workload), None) is None]
    removed = list(unmatched.values())
    if added and removed:
        unchanged = set(added).intersection(removed)
        added = [workload for workload in added if workload not in unchanged]
        removed = [workload for workload in removed if workload not in unchanged]
    return WorkloadDiff(tuple(added), tuple(removed))
