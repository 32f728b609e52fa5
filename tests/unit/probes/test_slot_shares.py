# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sharing of slots: services first, then equal shares of tenants, then quiescent workloads."""

from collections import Counter
from collections.abc import Iterable
import itertools

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.probes.slot_shares import in_order, to_release
from controller.workloads.changes import tenant

NOW_NS = 1000 * NS_PER_SEC
_ids = itertools.count(1)


def workload(name: str, qos: QosClass = QosClass.BE) -> Workload:
    return Workload(name, CgroupId("cpu", next(_ids)), f"/{name}", qos, "", "")


def several(name: str, number: int, qos: QosClass = QosClass.BE) -> list[Workload]:
    return [workload(f"{name}:{each}", qos) for each in range(number)]


def released(
    waiting: Iterable[Workload],
    measured: Iterable[Workload],
    *,
    changed_ns: int = NOW_NS,
    free: int = 0,
    rotate: bool = False,
) -> list[Workload]:
    measured = list(measured)
    return to_release(
        in_order(waiting, measured),
        {each.cgroup: each for each in measured},
        {each.cgroup: changed_ns + place for place, each in enumerate(measured)},
        free=free,
        now_ns=NOW_NS,
        rotate=rotate,
    )


@pytest.mark.parametrize(
    ("name", "expected"), [("batch:job", "batch"), ("batch", "batch"), ("team/pod-1", "team")]
)
def test_a_tenant_is_a_rule_or_a_namespace(name: str, expected: str) -> None:
    assert tenant(workload(name)) == expected


def test_services_take_slots_of_the_longest_quiescent_workloads_of_the_largest_tenant() -> None:
    crowd, other = several("crowd", 5), several("other", 2)
    services = [workload("web", QosClass.LS), workload("db", QosClass.LS)]
    assert released(services, [*other, *crowd]) == crowd[:2]


def test_a_service_does_not_take_the_slot_of_a_service_or_a_system_workload() -> None:
    others = [workload("db", QosClass.LS), workload("kube-system/dns", QosClass.SYSTEM)]
    assert released([workload("web", QosClass.LS)], others) == []


def test_slots_that_are_about_to_be_free_are_not_taken_again() -> None:
    services = several("web", 3, QosClass.LS)
    assert len(released(services, several("crowd", 9), free=2)) == 1


def test_services_come_before_a_thousand_workloads_that_waited_longer() -> None:
    waiting = [*several("crowd", 1000), workload("web", QosClass.LS)]
    assert in_order(waiting, [])[0].name == "web"
    assert len(released(waiting, several("crowd", 9))) == 1


def test_a_tenant_with_a_crowd_ends_with_an_equal_share() -> None:
    crowd, late = several("crowd", 100), several("late", 100)
    taken = released(late, crowd)
    assert len(taken) == 50 and {tenant(each) for each in taken} == {"crowd"}


def test_a_crowd_does_not_take_slots_of_a_small_tenant() -> None:
    assert released(several("crowd", 1000), [*several("crowd", 50), *several("late", 50)]) == []


def test_quiescent_workloads_make_room_for_others_of_their_tenant_only() -> None:
    measured, waiting = [*several("crowd", 20), *several("late", 20)], several("crowd", 5)
    long_ago_ns = NOW_NS - 60 * NS_PER_SEC
    assert released(waiting, measured, changed_ns=long_ago_ns) == []
    taken = released(waiting, measured, changed_ns=long_ago_ns, rotate=True)
    assert Counter(map(tenant, taken)) == {"crowd": 5}
    assert released(waiting, measured, rotate=True) == []
