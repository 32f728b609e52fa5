# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: which best-effort pod with a limit of its own has which class of a link's tree.

The classes are made with the tree, as many as the configuration says, and lent: a pod that comes
or goes changes the ceiling of one class and nothing else.
"""

from collections.abc import Iterable, Mapping

from controller.core.model import CgroupId, QosClass, Workload

__all__ = ("POD_LIMITS", "PodLimits", "is_limited", "unkept")

# What a problem with them is told under.
POD_LIMITS = "pod_limits"


def is_limited(workload: Workload) -> bool:
    """Return whether *workload* has a limit of its own."""
    return workload.qos is QosClass.BE and not (
        workload.limit_egress_bytes_per_s is None and workload.limit_ingress_bytes_per_s is None
    )


def unkept(without: int, classes: int, *, shaped: bool) -> str:
    """Return what to say of *without* pods whose limits are not kept; empty if there are none.

    Without their number, which changes with every pod: the text is a label of a metric.
    """
    if not without:
        return ""
    text = "pods have limits of their own (koordinator.sh/networkQOS) that are not kept: "
    if not shaped:
        return f"{text}no link is shaped here (section network)"
    return f"{text}there are classes for {classes} of them (network.pod_limits)"


class PodLimits:
    """Lends *count* classes, numbers from *first* on.

    ``numbers`` are the classes of who has one; ``without`` tells how many have none.
    """

    def __init__(self, first: int, count: int) -> None:
        self._all = range(first, first + count)
        self._workloads: Mapping[int, Workload] = {}
        self.numbers: Mapping[CgroupId, int] = {}
        self.without = 0

    @property
    def classes(self) -> range:
        """The numbers of all classes."""
        return self._all

    def set_workloads(self, workloads: Iterable[Workload]) -> bool:
        """Lend the classes to those of *workloads* that are limited; whether anything changes.

        Who has one keeps it. The others get what is left, in the order in which they come.
        """
        limited = {w.cgroup: w for w in workloads if is_limited(w)}
        numbers = {c: number for c, number in self.numbers.items() if c in limited}
        free = [number for number in self._all if number not in numbers.values()]
        new = [cgroup for cgroup in limited if cgroup not in numbers]
        numbers |= zip(new, free, strict=False)
        before = self._workloads
        self.without = len(limited) - len(numbers)
        self.numbers = numbers
        self._workloads = {number: limited[cgroup] for cgroup, number in numbers.items()}
        return self._workloads != before

    def ceilings(self, rate: int, *, ingress: bool) -> tuple[int, ...]:
        """Return the ceiling of every class on a link of *rate* bytes per second."""
        return tuple(
            min(rate, rate if limit is None else limit)
            for limit in (self._limit(number, ingress) for number in self._all)
        )

    def _limit(self, number: int, ingress: bool) -> int | None:
        workload = self._workloads.get(number)
        if workload is None:
            return None
        if ingress:
            return workload.limit_ingress_bytes_per_s
        return workload.limit_egress_bytes_per_s
