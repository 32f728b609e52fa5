# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's own budget: details are shed in order and measured again after a long time."""

import time

from controller.agent.self_budget import CostMeter, SelfBudget
from controller.config.sections.agent import BudgetConfig

SECOND = 1_000_000_000
DETAILS = ("counters", "blame", "sampling")


class Spender:
    """Updates a budget once a second with a given use of CPU."""

    def __init__(self, cpus: float) -> None:
        self.budget = SelfBudget(cpus, DETAILS)
        self.now_ns = self.spent_ns = 0
        self.budget.update(0, 0)

    def use(self, cpus: float, seconds: int) -> list[int]:
        """Use *cpus* for *seconds*; return the number of shed details after each change."""
        changes = []
        for _ in range(seconds):
            self.now_ns += SECOND
            self.spent_ns += round(cpus * SECOND)
            if self.budget.update(self.now_ns, self.spent_ns):
                changes.append(self.budget.shed)
        return changes


def test_within_the_budget_nothing_is_shed() -> None:
    spender = Spender(0.1)
    assert spender.use(0.099, 3600) == []
    assert spender.budget.shed == 0


def test_over_the_budget_details_are_shed_in_order_until_none_is_left() -> None:
    spender = Spender(0.1)
    assert spender.use(0.2, 10) == [1]
    verdict = "own CPU use 200mcpu, budget 100mcpu: detail counters is shed from now on"
    assert spender.budget.verdict == verdict
    assert spender.use(0.2, 100) == [2, 3]
    assert spender.budget.shed == len(DETAILS)


def test_time_used_before_the_first_update_does_not_count() -> None:
    budget = SelfBudget(0.1, DETAILS)
    assert not budget.update(0, 60 * SECOND)
    assert not budget.update(10 * SECOND, 60 * SECOND + SECOND // 2)
    assert budget.used_cpus == 0.05


def test_a_detail_is_measured_again_after_a_long_time_of_low_use() -> None:
    spender = Spender(0.1)
    spender.use(0.2, 20)
    assert spender.use(0.05, 500) == []
    assert spender.use(0.05, 300) == [1]


def test_a_detail_that_is_shed_again_waits_longer() -> None:
    spender = Spender(0.1)
    spender.use(0.2, 10)
    assert spender.use(0.05, 620) == [0]
    assert spender.use(0.2, 10) == [1]
    assert spender.use(0.05, 1100) == []
    assert spender.use(0.05, 200) == [0]


def test_use_just_below_the_budget_brings_no_detail_back() -> None:
    spender = Spender(0.1)
    spender.use(0.2, 10)
    assert spender.use(0.09, 7200) == []


def test_the_time_of_http_requests_sheds_nothing() -> None:
    in_http_s = 0.0
    budget = BudgetConfig(cpus=0.02, memory_bytes=1 << 40)
    meter = CostMeter(budget, DETAILS, probes=dict, http_cpu_s=lambda: in_http_s)
    assert not meter.poll(0)
    began_s = time.thread_time()
    while time.thread_time() < began_s + 0.4:
        pass
    in_http_s = time.thread_time() - began_s
    assert not meter.poll(10 * SECOND)
    assert meter.cost is not None and meter.cost.used_cpus is not None
    assert meter.cost.used_cpus < 0.02 < 0.04 <= meter.cost.cpu_s / 10
    assert meter.cost.shed == 0
