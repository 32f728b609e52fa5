# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which disks services used, from counts of their requests."""

from controller.core.harm.disks_in_use import DisksInUse
from controller.core.model import CgroupId, DiskRequests, WorkloadSample
from tests.support.loops.closed_loop import SECOND_NS

ONE, TWO = CgroupId("v2", 1), CgroupId("v2", 2)


def sample(cgroup: CgroupId, **counts: int) -> WorkloadSample:
    found = tuple(DiskRequests(*each) for each in counts.items())
    return WorkloadSample(cgroup, requests_by_disk=found)


def test_a_disk_is_used_for_ten_seconds_after_its_count_grew() -> None:
    disks = DisksInUse()
    assert not disks.is_measured
    disks.update([sample(ONE, a=5, b=3), sample(TWO)], 0)
    assert disks.is_measured
    assert disks.of([ONE], 0) == frozenset(), "what it used long ago, as far as is known"
    grown = [sample(ONE, a=6, b=3), sample(TWO, c=1)]
    disks.update(grown, SECOND_NS)
    assert disks.of([ONE], SECOND_NS) == {"a"}
    assert disks.of([ONE, TWO], SECOND_NS) == {"a", "c"}
    for second in range(2, 12):
        disks.update(grown, second * SECOND_NS)
    assert disks.of([ONE, TWO], 11 * SECOND_NS - 1) == {"a", "c"}
    assert disks.of([ONE, TWO], 11 * SECOND_NS) == frozenset()


def test_a_lower_count_is_a_new_beginning_and_a_lost_workload_is_forgotten() -> None:
    disks = DisksInUse()
    disks.update([sample(ONE, a=5)], 0)
    disks.update([sample(ONE, a=2)], SECOND_NS)
    assert disks.of([ONE], SECOND_NS) == frozenset()
    disks.update([sample(ONE, a=3)], 2 * SECOND_NS)
    assert disks.of([ONE], 2 * SECOND_NS) == {"a"}
    disks.update([WorkloadSample(ONE)], 3 * SECOND_NS)
    assert disks.of([ONE], 3 * SECOND_NS) == frozenset()
    assert not disks.is_measured
