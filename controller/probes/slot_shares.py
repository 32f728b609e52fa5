# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which best-effort workloads give up their slots while there are more workloads than slots.

A tenant that may make cgroups below a pattern of the configuration, or pods in a namespace, can
have any number of workloads. So services come first, and every other workload gets a slot only at
the expense of a tenant that has more of them, or of a quiescent workload of its own tenant.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.workloads.changes import tenant

__all__ = ("in_order", "to_release")

# A workload whose counters have not changed for this time may lose its slot to one of its tenant.
_QUIET_NS = 10 * NS_PER_SEC
# Most slots of other workloads than services that change hands at the same time.
_MOST = 256


def in_order(waiting: Iterable[Workload], measured: Iterable[Workload]) -> list[Workload]:
    """Return *waiting* in the order in which they get slots.

    Services are first, then workloads of the tenants with the fewest *measured* workloads.
    """
    slots = Counter(map(tenant, measured))
    return sorted(waiting, key=lambda each: (each.qos is not QosClass.LS, slots[tenant(each)]))


def to_release(
    waiting: Sequence[Workload],
    measured: Mapping[CgroupId, Workload],
    changed_ns: Mapping[CgroupId, int],
    *,
    free: int,
    now_ns: int,
    rotate: bool,
) -> list[Workload]:
    """Return the best-effort workloads whose slots are needed for *waiting* ones.

    :param waiting: workloads without a slot, as returned by ``in_order``.
    :param measured: the workloads with a slot.
    :param changed_ns: when the counters of measured workloads changed last.
    :param free: number of slots that are free, or will be in a moment.
    :param rotate: whether some workload without a slot runs, so that quiescent workloads should
        make room for others of their tenant.
    """
    # By tenant; the longest quiescent workload is last.
    holders: dict[str, list[Workload]] = {}
    for each in sorted(
        (w for w in measured.values() if w.qos is QosClass.BE),
        key=lambda each: changed_ns.get(each.cgroup, 0),
        reverse=True,
    ):
        holders.setdefault(tenant(each), []).append(each)
    slots = Counter(map(tenant, measured.values()))
    released: list[Workload] = []
    services = [each for each in waiting if each.qos is QosClass.LS]
    for each in (*services, *waiting[len(services) : len(services) + _MOST]):
        if free > 0:
            free -= 1
            slots[tenant(each)] += 1
            continue
        own = tenant(each)
        largest = max(holders, key=lambda name: slots[name], default="")
        giver = largest
        if each.qos is not QosClass.LS and slots[largest] <= slots[own] + 1:
            giver = own if rotate and own in holders else ""
            last_ns = changed_ns.get(holders[giver][-1].cgroup, 0) if giver else 0
            if last_ns + _QUIET_NS > now_ns:
                giver = ""
        if not giver:
            continue
        released.append(holders[giver].pop())
        slots[giver] -= 1
        slots[own] += 1
        if not holders[giver]:
            del holders[giver]
    return released
