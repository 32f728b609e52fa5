# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One amount for all workloads below a common parent, where they are too many for one each.

The kernel has a least quota. Those of hundreds of workloads add up to more than a full squeeze may
leave, so the parent cgroup gets the sum of what each of them would have without the least quota,
in addition to their own quotas. The parent has no more than that only while the difference matters.
"""

from collections import defaultdict
from collections.abc import Mapping

from controller.core.model import CgroupId

__all__ = ("lower_floors", "parent_amounts")

# A parent gets an amount when its workloads would get more than this part of it too much, and keeps
# it until that is less than the second number: no write is repeated at the edge.
_FIRST, _LAST = 0.05, 0.01


def lower_floors(
    floors: Mapping[CgroupId, float], parents: Mapping[CgroupId, CgroupId], most: float
) -> dict[CgroupId, float]:
    """Return *floors*, those of workloads with one of *parents* lowered to their part of *most*.

    Unchanged as long as all of them together are at most *most*. A workload without a parent keeps
    its floor, so the sum is above *most* by what these have too much.
    """
    total = sum(floors.values())
    part = most / total if total > most else 1.0
    return {each: floor * part if each in parents else floor for each, floor in floors.items()}


def parent_amounts(
    wanted: Mapping[CgroupId, float],
    own: Mapping[CgroupId, float],
    parents: Mapping[CgroupId, CgroupId],
    before: Mapping[CgroupId, float],
    least: float,
) -> dict[CgroupId, float]:
    """Return the amount of each of *parents* whose workloads get too much together.

    :param wanted: what each workload is to get; *own* is what it gets where it is limited itself.
    :param before: the last result.
    :param least: the least amount that can be granted.
    """
    sums: dict[CgroupId, float] = defaultdict(float)
    given: dict[CgroupId, float] = defaultdict(float)
    for cgroup, amount in wanted.items():
        parent = parents.get(cgroup)
        if parent is not None:
            sums[parent] += amount
            given[parent] += own.get(cgroup, amount)
    amounts = {parent: max(least, amount) for parent, amount in sums.items()}
    return {
        parent: amount
        for parent, amount in amounts.items()
        if given[parent] > amount * (1 + (_LAST if parent in before else _FIRST))
    }
