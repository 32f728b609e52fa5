# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Assignment of HTB classes to best-effort pods with a bandwidth limit of their own.

The classes are made with the tree, ``network.pod_limits`` of them, and assigned to pods. A pod that
is added or removed changes the ceiling of one class, and the tree stays.
"""

from collections.abc import Iterable, Mapping

from controller.core.model import CgroupId, QosClass, Workload

__all__ = ("POD_LIMITS", "PodLimits", "is_limited", "unkept")

# The key of the limits among the problems of the links.
POD_LIMITS = "pod_limits"


def is_limited(workload: Workload) -> bool:
    """Return whether *workload* is best-effort and has a bandwidth limit of its own."""
    return workload.qos is QosClass.BE and not (
        workload.limit_egress_bytes_per_s is None and workload.limit_ingress_bytes_per_s is None
    )


def unkept(without: int, classes: int, *, shaped: bool) -> str:
    """Return the problem that *without* pods have limits but no class; empty if there are none.

    The text does not contain the number of pods: it is the value of a metric label and must not
    change with every pod.

    :param classes: the number of classes for pods.
    :param shaped: whether at least one link is shaped.
    """
    if not without:
        return ""
    text = "pods have limits of their own (koordinator.sh/networkQOS) that are not enforced: "
    if not shaped:
        return f"{text}no link is shaped here (section network)"
    return f"{text}there are classes for {classes} of them (network.pod_limits)"


class PodLimits:
    """Assigns *count* classes, with numbers from *first* on.

    ``numbers`` are the classes of the pods that have one, by ``Workload.whole``: the containers of
    a pod have their class in common. ``without`` is the number of pods with a
    limit and without a class.
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
        """Assign the classes to those of *workloads* that are limited.

        A workload that has a class keeps it. The others get the free classes in their order.

        :return: whether an assignment or a limit changed.
        """
        limited = {w.whole: w for w in workloads if is_limited(w)}
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
        """Return the ceiling of every class, in bytes per second, on a link of *rate*."""
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
