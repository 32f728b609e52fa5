# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Difference between two lists of workloads."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.model import CgroupId, QosClass, Workload
from controller.workloads.changes import diff_workloads

workloads = st.builds(
    lambda number, qos: Workload(f"w{number}", CgroupId("v2", number), f"/{number}", qos, "", ""),
    st.integers(0, 5),
    st.sampled_from(QosClass),
)
workload_lists = st.lists(workloads, unique_by=lambda workload: workload.cgroup).map(tuple)


@given(workload_lists, workload_lists)
def test_added_and_removed_are_the_difference(
    before: tuple[Workload, ...], after: tuple[Workload, ...]
) -> None:
    copies = tuple(workload._replace() for workload in after)  # equal, but other objects
    for later in (after, copies):
        diff = diff_workloads(before, later)
        assert list(diff.added) == [workload for workload in after if workload not in before]
        assert list(diff.removed) == [workload for workload in before if workload not in after]


def test_a_workload_that_leaves_a_class_is_removed_from_it() -> None:
    batch = Workload("w", CgroupId("v2", 1), "/w", QosClass.BE, "", "")
    diff = diff_workloads((batch,), (batch._replace(qos=QosClass.LS),))
    assert diff.of_class(QosClass.BE) == ((), (batch,))
    assert diff.of_class(QosClass.SYSTEM) == ((), ())


def test_fields_that_are_not_compared_make_no_difference() -> None:
    batch = Workload("w", CgroupId("v2", 1), "/w", QosClass.BE, "", "")
    other = batch._replace(cgroup=CgroupId("v2", 2), path="/other")
    diff = diff_workloads((batch,), (batch._replace(priority=1), other))
    assert diff.by_fields("cgroup", "path") == ((other,), ())
    assert diff.by_fields("cgroup", "priority") == diff
