# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A machine whose CPUs stand still now and then, with best-effort work that harms no service."""

from dataclasses import replace
from random import Random

import pytest

from controller.core.decision import ChannelState
from controller.core.looks import TickReason
from controller.core.model import CgroupId, IndicatorName, Workload, WorkloadSample
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.histogram import index_of
from tests.support.loops.closed_loop import SECOND_NS, ClosedLoop, make_settings, make_spec
from tests.support.loops.looking_loop import WokenLoop

SHIPPED = replace(make_spec(filter_ns=4 * SECOND_NS), name=IndicatorName.RUNQ_DELAY_P99)
WORKERS = 4
# The service waits for two thirds of its sweet point, whatever best-effort does.
HARMLESS = Plant(quiet_p99_ns=1.3e6, p99_ns=1e3)
WANTED_CPUS = 1.97


class StallingNode(SimulatedNode):
    """Every few seconds all CPUs stand still for 40 ms, and the service's workers wait.

    A late timer shows all but the first ``unseen_ns`` of it; until then the probe sees what ran on
    the CPU, or that it was idle.
    """

    stall_ns = 40_000_000
    unseen_ns = 4_000_000

    def __init__(self, seed: int) -> None:
        super().__init__(seed, HARMLESS, request_rate=200.0)
        self._stalls = Random(seed)
        self._next_ns = 0.0
        self._passed_ns = 0
        self._host_ns = 0

    def _wait(self, cgroup: CgroupId, p99_ns: float, uses: list[float], dt_ns: int) -> None:
        super()._wait(cgroup, p99_ns, uses, dt_ns)
        self._passed_ns += dt_ns
        if self._passed_ns < self._next_ns:
            return
        self._next_ns = self._passed_ns + self._stalls.uniform(2, 6) * SECOND_NS
        self._histograms[cgroup][index_of(self.stall_ns)] += WORKERS
        # A timer is due within a tick of the kernel; until then what ran seems to run on.
        unseen = min(1.0, self.unseen_ns / self.stall_ns)
        whole_ns = WORKERS * self.stall_ns
        for workload, use in zip(self.best_effort, uses, strict=True):
            ran_ns = whole_ns * unseen * use / self.plant.cpus
            self._blame[cgroup, workload.cgroup, True] += ran_ns
            self._waited[cgroup] += ran_ns
        self._host_ns += round(whole_ns * (1 - unseen * sum(uses) / self.plant.cpus))

    def _sample(self, workload: Workload) -> WorkloadSample:
        sample = super()._sample(workload)
        if sample.wait_total_ns is None:
            return sample
        whole_ns = sample.wait_total_ns + self._host_ns
        return sample._replace(wait_total_ns=whole_ns, wait_host_ns=self._host_ns)


def kept(node: StallingNode) -> float:
    """Return the part of its work that best-effort keeps in two minutes."""
    ClosedLoop(node, make_settings(SHIPPED)).run(120)
    return node.best_effort_cpu_s / (WANTED_CPUS * 120)


@pytest.mark.parametrize("seed", range(3))
def test_stalls_cost_no_work(seed: int) -> None:
    assert kept(StallingNode(seed)) >= 0.98


@pytest.mark.parametrize("seed", range(3))
def test_stalls_that_no_timer_shows_cost_little_work(seed: int) -> None:
    """A single stall is no evidence, though best-effort work seems to run on all the time.

    If it were, the work would keep 23 to 27 %.
    """
    node = StallingNode(seed)
    node.unseen_ns = node.stall_ns
    assert kept(node) >= 0.75


@pytest.mark.parametrize("seed", range(2))
def test_ticks_that_come_soon_after_one_another_take_no_stall_for_harm(seed: int) -> None:
    node = StallingNode(seed)
    loop = WokenLoop(node, make_settings(SHIPPED), wakes=True)
    assert loop.run(120 * SECOND_NS) is None
    assert loop.looker.found[TickReason.NEAR] > 100


class LateNode(StallingNode):
    """The CPUs stand still in every tick, which no timer shows."""

    stall_ns = unseen_ns = 15_000_000

    def _wait(self, cgroup: CgroupId, p99_ns: float, uses: list[float], dt_ns: int) -> None:
        self._next_ns = 0.0
        super()._wait(cgroup, p99_ns, uses, dt_ns)


def test_a_squeeze_that_leaves_the_wait_to_idle_cpus_is_let_go() -> None:
    """A squeeze makes CPUs idle, and then the stalls meet idle CPUs.

    If stalls were evidence, the work would keep 79 %.
    """
    node = LateNode(1)
    loop = ClosedLoop(node, make_settings(SHIPPED))
    plans = loop.run(120)
    verdicts = [each.text for plan in plans for each in plan.verdicts]
    assert any("waits for CPUs that are idle or stand still" in text for text in verdicts)
    assert ChannelState.NOT_BE in {plan.demands[0].state for plan in plans}
    assert node.best_effort_cpu_s > 1.05 * 0.79 * WANTED_CPUS * 120


class WakingNode(SimulatedNode):
    """Best-effort work harms the service, whose other waits are those for idle CPUs to wake up."""

    def _sample(self, workload: Workload) -> WorkloadSample:
        sample = super()._sample(workload)
        if sample.wait_total_ns is None or sample.waits is None:
            return sample
        host_ns = 600_000 * sample.waits
        return sample._replace(wait_total_ns=sample.wait_total_ns + host_ns, wait_host_ns=host_ns)


@pytest.mark.parametrize("seed", range(3))
def test_a_squeeze_that_helps_is_kept_though_idle_cpus_wake_up_late(seed: int) -> None:
    node = WakingNode(seed, Plant(noise=0.2))
    loop = ClosedLoop(node, make_settings(make_spec(filter_ns=4 * SECOND_NS)))
    plans = loop.run(120)
    assert not [e.text for p in plans for e in p.verdicts if "no squeeze shortens" in e.text]
    assert node.p99_ns < 4e6
