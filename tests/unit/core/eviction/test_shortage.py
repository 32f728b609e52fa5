# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which workload is evicted when memory runs out, when, and how many of them."""

from controller.core.decision import Eviction, MemoryReport
from controller.core.eviction.budget import Candidate, EvictionBudget, EvictionHistory
from controller.core.eviction.shortage import ShortageEvictions, memory_candidates
from controller.core.model import (
    CgroupId,
    Channel,
    EvictionAnswer,
    EvictionResult,
    MemoryUse,
    QosClass,
    Target,
    TargetKind,
    Workload,
)
from controller.core.settings import EvictionLimits
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex

MIB = 1 << 20
LARGE, SMALL, OTHER = (CgroupId("v2", number) for number in (1, 2, 3))


def job(cgroup: CgroupId, needed: int, over: int = 0, priority: int = 0) -> Candidate:
    return Candidate(cgroup, f"job{cgroup.id}", over * MIB, 0.0, priority, needed * MIB)


class Node:
    """A node with a margin of 100 MiB and a room of 500; amounts in MiB, seconds as ticks."""

    def __init__(
        self,
        *jobs: Candidate,
        per_hour: int = 60,
        not_before_s: int = 0,
        asked_s: tuple[int, ...] = (),
    ) -> None:
        self.jobs = {each.cgroup: each for each in jobs}
        asked_ns = tuple(each * NS_PER_SEC for each in asked_s)
        history = EvictionHistory(asked_ns, not_before_s * NS_PER_SEC)
        self.budget = EvictionBudget(EvictionLimits(per_hour), history)
        self.policy = ShortageEvictions(history)
        self.now_s = 0
        self.answers: list[EvictionAnswer] = []

    def step(self, available: int = 200, needed: int = 400) -> CgroupId | None:
        """Make a tick and return the victim."""
        eviction = self.tick(available, needed)
        return None if eviction is None else eviction.cgroup

    def tick(self, available: int = 200, needed: int = 400) -> Eviction | None:
        self.now_s += 1
        report = MemoryReport(
            capacity_bytes=1000 * MIB,
            margin_bytes=100 * MIB,
            others_bytes=400 * MIB,
            room_bytes=500 * MIB,
            needed_bytes=needed * MIB,
            available_bytes=available * MIB,
            limited=1,
            unlimited=0,
        )
        answers, self.answers = self.answers, []
        return self.policy.step(
            self.now_s * NS_PER_SEC,
            report,
            lambda: self.jobs.values(),
            self.jobs,
            answers,
            self.budget,
        )

    def answer(self, cgroup: CgroupId, result: EvictionResult, wait_s: int = 0) -> None:
        wait_ns = wait_s * NS_PER_SEC
        self.answers.append(EvictionAnswer(cgroup, Channel.MEMORY, result, "because", wait_ns))


def test_one_is_evicted_when_less_than_half_the_margin_is_available() -> None:
    node = Node(job(SMALL, 60, over=10), job(LARGE, 90))
    assert [node.step(available) for available in (200, 60, 50)] == [None, None, None]
    eviction = node.tick(available=49)
    assert eviction is not None
    assert (eviction.cgroup, eviction.service, eviction.channel) == (SMALL, "", Channel.MEMORY)
    assert eviction.blame == 60 * MIB
    why, _, whom = eviction.reason.partition("; ")
    assert why == "the node runs out of memory (49MiB of 50MiB are available)"
    assert whom == "job2 is 10MiB above its request"
    assert [each.subject for each in node.policy.verdicts] == ["job2"]


def test_order_is_above_request_then_low_priority_then_large() -> None:
    first, second, third = job(SMALL, 10, 5), job(OTHER, 20, 5, priority=1), job(LARGE, 90, 1)
    assert Node(third, second, first).step(available=0) == SMALL
    assert Node(third, second).step(available=0) == OTHER
    assert Node(job(SMALL, 10), job(LARGE, 11)).step(available=0) == LARGE


def test_a_need_above_the_room_counts_after_five_seconds_without_a_gap() -> None:
    node = Node(job(LARGE, 90))
    assert [node.step(needed=501) for _ in range(5)] == [None] * 5
    assert node.step(needed=500) is None
    assert [node.step(needed=501) for _ in range(5)] == [None] * 5
    assert node.step(needed=501) == LARGE


def test_what_victims_hold_counts_as_free_until_they_are_gone() -> None:
    node = Node(job(LARGE, 60, over=2), job(SMALL, 60, over=1), job(OTHER, 60))
    assert node.step(available=0) == LARGE
    node.answer(LARGE, EvictionResult.EVICTED, wait_s=500)
    assert [node.step(available=0) for _ in range(100)] == [None] * 100, "60 of 50 will be free"
    del node.jobs[LARGE]
    assert node.step(available=0) == SMALL


def test_more_is_evicted_after_four_seconds_if_that_is_not_enough() -> None:
    node = Node(job(LARGE, 30, over=2), job(SMALL, 10, over=1), job(OTHER, 20))
    victims = [node.step(available=0) for _ in range(20)]
    assert victims == [LARGE, *[None] * 3, SMALL, *[None] * 3, OTHER, *[None] * 11]


def test_a_refusal_is_followed_by_another_workload_and_costs_nothing() -> None:
    node = Node(job(LARGE, 60, over=2), job(SMALL, 60, over=1), per_hour=1)
    assert node.step(available=0) == LARGE
    node.answer(LARGE, EvictionResult.REFUSED)
    assert [node.step(available=0) for _ in range(4)] == [None] * 3 + [SMALL]
    node.answer(SMALL, EvictionResult.KILLED)
    assert [node.step(available=0) for _ in range(100)] == [None] * 100, "one in an hour"
    assert node.budget.asked_ns == (5 * NS_PER_SEC,)


def test_a_report_holds_all_for_its_time() -> None:
    node = Node(job(LARGE, 60), job(SMALL, 60), per_hour=1)
    assert node.step(available=0) == LARGE
    node.answer(LARGE, EvictionResult.REPORTED, wait_s=10)
    assert [node.step(available=0) for _ in range(11)] == [None] * 10 + [LARGE]


def test_a_killed_workload_that_is_back_may_be_evicted_again_and_a_frozen_one_later() -> None:
    node = Node(job(LARGE, 60))
    assert node.step(available=0) == LARGE
    node.answer(LARGE, EvictionResult.KILLED)
    assert [node.step(available=0) for _ in range(4)] == [None] * 3 + [LARGE]
    node.answer(LARGE, EvictionResult.FROZEN, wait_s=20)
    assert [node.step(available=0) for _ in range(21)] == [None] * 20 + [LARGE]


def test_a_pause_after_an_eviction_for_a_service_does_not_bind() -> None:
    assert Node(job(LARGE, 60), not_before_s=3600).step(available=0) == LARGE


def test_after_an_earlier_planner_the_pause_goes_on_and_the_hour_counts() -> None:
    node = Node(job(LARGE, 60), asked_s=(1,))
    assert [node.step(available=0) for _ in range(5)] == [None] * 4 + [LARGE]
    node = Node(job(LARGE, 60), per_hour=1, asked_s=(1,))
    assert [node.step(available=0) for _ in range(9)] == [None] * 9


def test_candidates_are_pods_that_may_be_evicted_with_what_they_requested() -> None:
    pod = Target(TargetKind.CGROUP, "v2", 9, "/pod")
    one = Workload("ns/pod/a", LARGE, "/pod/a", QosClass.BE, "ns/pod", "", priority=3)
    two = Workload("ns/pod/b", SMALL, "/pod/b", QosClass.BE, "ns/pod", "", priority=3)
    daemon = Workload("daemon", OTHER, "/d", QosClass.BE, "daemon", "", evictable=False)
    containers = [each._replace(container_of=pod, limit_memory_bytes=50) for each in (one, two)]
    index = WorkloadIndex([*containers, daemon], {})
    uses = [MemoryUse(each, 99, needed) for each, needed in ((LARGE, 40), (SMALL, 30), (OTHER, 7))]
    (found,) = memory_candidates(uses, index)
    assert found == Candidate(CgroupId("v2", 9), "ns/pod", 20, 0.0, 3, 70)
