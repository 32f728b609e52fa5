# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How many new workloads a scan takes, and in which order."""

from controller.core.model import CgroupId, QosClass, Workload
from controller.workloads.intake import Intake

MOST = 128


def workloads(
    rule: str, numbers: range, first_id: int, qos: QosClass = QosClass.BE
) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            f"{rule}:{number}", CgroupId("cpu", first_id + number), f"/{rule}/{number}", qos, "", ""
        )
        for number in numbers
    )


def started() -> Intake:
    intake = Intake()
    intake.update(())
    return intake


def test_the_first_scan_takes_everything() -> None:
    intake = Intake()
    intake.update(workloads("batch", range(5000), 1))
    assert not intake.waiting and not intake.counts


def test_a_scan_takes_a_bounded_number_and_the_next_ones_the_rest() -> None:
    intake = started()
    found = workloads("batch", range(300), 1)
    left = []
    for _ in range(4):
        intake.update(found)
        left.append(len(intake.waiting))
        assert sum(intake.counts.values()) == len(intake.waiting)
    assert left == [300 - MOST, 300 - 2 * MOST, 0, 0]


def test_services_do_not_wait_behind_best_effort_work() -> None:
    intake = started()
    services = workloads("web", range(500), 100_000, QosClass.LS)
    intake.update((*workloads("batch", range(5000), 1), *services))
    assert not any(each.cgroup in intake.waiting for each in services)
    assert intake.counts == {QosClass.BE: 5000 - MOST}


def test_the_longest_waiting_are_first_even_if_more_come_with_every_scan() -> None:
    intake = started()
    old = workloads("batch", range(200), 100_000)
    intake.update(old)
    # Sorted by path and by id the new ones are before the old ones.
    intake.update((*workloads("batch", range(5000), 1), *old))
    assert not any(each.cgroup in intake.waiting for each in old)


def test_a_crowd_of_one_tenant_does_not_keep_another_one_waiting() -> None:
    intake = started()
    crowd = workloads("crowd", range(5000), 1)
    intake.update(crowd)
    jobs = workloads("jobs", range(MOST // 2), 100_000)
    intake.update((*crowd, *jobs))
    assert not any(each.cgroup in intake.waiting for each in jobs)


def test_churn_is_taken_at_a_bounded_rate_and_those_that_end_do_not_wait() -> None:
    intake = started()
    taken: set[CgroupId] = set()
    for scan in range(50):  # of 1,000 cgroups each half is made again between two scans
        found = workloads("batch", range(500), 500 * scan) + workloads(
            "batch", range(500, 1000), 500 * scan
        )
        intake.update(found)
        now = {each.cgroup for each in found} - intake.waiting.keys()
        assert len(now - taken) <= MOST and len(intake.waiting) <= len(found)
        taken |= now
    intake.update(())
    assert not intake.waiting
