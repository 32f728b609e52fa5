# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether each cause is named within 30 s of its begin, beside a service that was well before.

Simulated time. Nothing is limited, so that a cause lasts until it is named. The times are printed;
docs/HISTORY.md has them.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from controller.core.decision import SLOW, SlowBecause
from controller.core.model import Mode, QosClass, Workload, WorkloadSample
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.sim.plants import DiskWaitNode, MemoryNode, NetworkNode, ResourceNode
from tests.sim.test_slow_services import FIGURE, QUICK, WithFigure
from tests.support.loops.closed_loop import TICK_NS, TICKS_PER_S, ClosedLoop, Node, make_settings
from tests.support.loops.resource_loop import resource_settings

# After so long it is known what a service uses while it is well.
WELL_S, LONGEST_S = 25, 30


class Case(NamedTuple):
    """A node whose service is well until ``begin``."""

    loop: ClosedLoop[Node]
    begin: Callable[[], None]


class Varying(WithFigure):
    """A node whose service has a figure below its sweet point at first."""

    value_ns = 15e6


class Crowding(SimulatedNode):
    """A node whose service may begin to have more tasks than CPUs."""

    # Its tasks wait for each other for 40 times the CPU time from here on.
    crowded_from_ns: int | None = None

    def oncpu_ns(self) -> int:
        """Return the CPU time of the service so far."""
        return self._sample(self.sensitive[0]).oncpu_ns or 0

    def _sample(self, workload: Workload) -> WorkloadSample:
        sample = super()._sample(workload)
        begin_ns, total_ns, oncpu_ns = self.crowded_from_ns, sample.wait_total_ns, sample.oncpu_ns
        if begin_ns is None or total_ns is None or oncpu_ns is None:
            return sample
        return sample._replace(wait_total_ns=total_ns + 40 * (oncpu_ns - begin_ns))


def waits(node: SimulatedNode, begin: Callable[[], None]) -> Case:
    return Case(ClosedLoop(node, make_settings(mode=Mode.OBSERVE)), begin)


def beside(qos: QosClass, throttled_ratio: float = 0.0) -> Case:
    """A hog of the class *qos*, and a service that may reach its own limit too."""
    node = SimulatedNode(1, wants=(0.01,))
    node.best_effort[0] = node.best_effort[0]._replace(name="hog", service="hog", qos=qos)

    def begin() -> None:
        node.wants[0] = 1.5
        node.throttled_ratio = throttled_ratio

    return waits(node, begin)


def stolen() -> Case:
    node = SimulatedNode(1, Plant(threads=1), wants=(0.01,))

    def begin() -> None:
        node.wants[0], node.steal_ratio = 0.1, 0.6

    return waits(node, begin)


def crowded(steal_ratio: float) -> Case:
    node = Crowding(1, Plant(threads=1), wants=(0.01,))

    def begin() -> None:
        node.wants[0], node.steal_ratio = 0.1, steal_ratio
        node.crowded_from_ns = node.oncpu_ns()

    return waits(node, begin)


def figure(
    want: float = 0.005, times: float = 1.0, steal_ratio: float = 0.0, plant: Plant = QUICK
) -> Case:
    """Only the service's own figure shows that it is slow."""
    node = Varying(1, plant, wants=(0.005,))

    def begin() -> None:
        node.value_ns = 50e6  # not implausible, as four times the usual value is
        node.wants[0], node.steal_ratio = want, steal_ratio
        node.request_rate *= times

    return Case(ClosedLoop(node, make_settings(FIGURE, mode=Mode.OBSERVE)), begin)


def resource(node: ResourceNode, begin: Callable[[], None]) -> Case:
    return Case(ClosedLoop(node, resource_settings(node, mode=Mode.OBSERVE)), begin)


def by_others(node: ResourceNode) -> Case:
    """Best-effort work begins to use the resource of *node*."""
    wants, node.wants = node.wants, [want / 1000 for want in node.wants]

    def begin() -> None:
        node.wants = wants

    return resource(node, begin)


def by_itself(node: ResourceNode) -> Case:
    """The service begins to need far more of the resource of *node*."""
    node.wants = [want / 1000 for want in node.wants]

    def begin() -> None:
        node.scale = 500.0

    return resource(node, begin)


def at_its_own_limit() -> Case:
    node = MemoryNode(1)
    case = by_others(node)

    def begin() -> None:
        case.begin()
        node.own_hits = 1.0

    return Case(case.loop, begin)


def with_little_best_effort() -> Case:
    node = DiskWaitNode(1)
    node.service_rate = 6 * node.bandwidth
    return by_others(node)


CASES: dict[str, tuple[SlowBecause, Callable[[], Case]]] = {
    "best-effort work, waits for a CPU": (
        SlowBecause.BEST_EFFORT,
        lambda: beside(QosClass.BE),
    ),
    "best-effort work, own figure": (
        SlowBecause.BEST_EFFORT,
        lambda: figure(1.5, plant=Plant(quiet_p99_ns=2e3)),
    ),
    "best-effort work, memory": (SlowBecause.BEST_EFFORT, lambda: by_others(MemoryNode(1))),
    "best-effort work, link": (SlowBecause.BEST_EFFORT, lambda: by_others(NetworkNode(1))),
    "best-effort work, disk": (SlowBecause.BEST_EFFORT, lambda: by_others(DiskWaitNode(1))),
    "another service": (SlowBecause.SERVICE, lambda: beside(QosClass.LS)),
    "other work": (SlowBecause.OTHER_WORK, lambda: beside(QosClass.SYSTEM)),
    "own CPU limit and best-effort work": (
        SlowBecause.OWN_QUOTA,
        lambda: beside(QosClass.BE, throttled_ratio=0.2),
    ),
    "own memory limit and best-effort work": (SlowBecause.OWN_MEMORY, at_its_own_limit),
    "own load": (SlowBecause.OWN_LOAD, lambda: figure(times=2.0)),
    "own tasks": (SlowBecause.OWN_TASKS, lambda: crowded(0.0)),
    "own tasks and the host": (SlowBecause.OWN_TASKS, lambda: crowded(0.6)),
    "the host, waits for a CPU": (SlowBecause.HOST, stolen),
    "the host, own figure": (SlowBecause.HOST, lambda: figure(steal_ratio=0.2)),
    "disk": (SlowBecause.DISK, lambda: by_itself(DiskWaitNode(1))),
    "disk and a little best-effort work": (SlowBecause.DISK, with_little_best_effort),
    "link": (SlowBecause.LINK, lambda: by_itself(NetworkNode(1))),
    "elsewhere": (SlowBecause.ELSEWHERE, figure),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cause_is_named_within_30_s_and_no_other_one_before(name: str) -> None:
    because, make = CASES[name]
    loop, begin = make()
    told = [each.text for plan in loop.run(WELL_S) for each in plan.verdicts]
    assert not told
    begin()
    for tick in range(1, LONGEST_S * TICKS_PER_S + 1):
        for each in loop.step().verdicts:
            if each.text.startswith(SLOW) and each.subject.startswith("web"):
                print(f"{tick * TICK_NS / 1e9:.1f} s: {each.text}")
                told.append(each.text)
    assert len(told) == 1
    assert told[0].startswith(f"{SLOW}{because}")


# Best-effort work hardly runs in these.
ASLEEP = ("another service", "other work", "own load", "the host, own figure", "disk", "link")


@pytest.mark.soak
@pytest.mark.parametrize("name", [*ASLEEP, "elsewhere"])
def test_best_effort_work_that_sleeps_is_in_no_verdict_of_15_minutes(name: str) -> None:
    because, make = CASES[name]
    loop, begin = make()
    loop.run(WELL_S)
    begin()
    seen = Counter(each.because for plan in loop.run(15 * 60) for each in plan.slow)
    print(seen)
    assert seen[because] > 0
    assert seen[SlowBecause.BEST_EFFORT] == 0
