# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who came and who went."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.workload_index import diff_workloads

workloads = st.builds(
    lambda number, qos: Workload(f"w{number}", CgroupId("v2", number), f"/{number}", qos, "", ""),
    st.integers(0, 5),
    st.sampled_from(QosClass),
)
rolls = st.lists(workloads, unique_by=lambda workload: workload.cgroup).map(tuple)


@given(rolls, rolls)
def test_came_and_gone_are_what_differs(
    before: tuple[Workload, ...], after: tuple[Workload, ...]
) -> None:
    anew = tuple(workload._replace() for workload in after)  # equal, but other objects
    for later in (after, anew):
        change = diff_workloads(before, later)
        assert list(change.added) == [workload for workload in after if workload not in before]
        assert list(change.removed) == [workload for workload in before if workload not in after]


def test_who_leaves_a_class_went_from_it() -> None:
    batch = Workload("w", CgroupId("v2", 1), "/w", QosClass.BE, "", "")
    change = diff_workloads((batch,), (batch._replace(qos=QosClass.LS),))
    assert change.of_class(QosClass.BE) == ((), (batch,))
    assert change.of_class(QosClass.SYSTEM) == ((), ())


def test_what_is_not_compared_does_not_differ() -> None:
    batch = Workload("w", CgroupId("v2", 1), "/w", QosClass.BE, "", "")
    other = batch._replace(cgroup=CgroupId("v2", 2), path="/other")
    change = diff_workloads((batch,), (batch._replace(priority=1), other))
    assert change.by_fields("cgroup", "path") == ((other,), ())
    assert change.by_fields("cgroup", "priority") == change
