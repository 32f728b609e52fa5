# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's own budget: detail goes in order, and comes back with patience."""

from controller.agent.self_budget import SelfBudget

SECOND = 1_000_000_000
DETAILS = ("counters", "blame", "sampling")


class Spender:
    """Calls a budget once a second, with a given use of CPU."""

    def __init__(self, cpus: float) -> None:
        self.budget = SelfBudget(cpus, DETAILS)
        self.now_ns = self.spent_ns = 0
        self.budget.update(0, 0)

    def use(self, cpus: float, seconds: int) -> list[int]:
        """Use *cpus* for *seconds*; return every change of how much is shed."""
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
    assert spender.budget.without == ()


def test_over_the_budget_detail_goes_in_order_and_then_no_more() -> None:
    spender = Spender(0.1)
    assert spender.use(0.2, 10) == [1]
    assert spender.budget.without == ("counters",)
    assert spender.budget.verdict == "own cost 200mcpu of 100mcpu: without counters from now on"
    assert spender.use(0.2, 100) == [2, 3]
    assert spender.budget.without == DETAILS


def test_what_was_spent_before_the_first_look_does_not_count() -> None:
    budget = SelfBudget(0.1, DETAILS)
    assert not budget.update(0, 60 * SECOND)
    assert not budget.update(10 * SECOND, 60 * SECOND + SECOND // 2)
    assert budget.used_cpus == 0.05


def test_detail_comes_back_when_there_was_room_for_long() -> None:
    spender = Spender(0.1)
    spender.use(0.2, 20)
    assert spender.use(0.05, 500) == []
    assert spender.use(0.05, 300) == [1]


def test_a_detail_that_has_to_go_again_waits_longer() -> None:
    spender = Spender(0.1)
    spender.use(0.2, 10)
    assert spender.use(0.05, 620) == [0]
    assert spender.use(0.2, 10) == [1]
    assert spender.use(0.05, 1100) == []
    assert spender.use(0.05, 200) == [0]


def test_just_below_the_budget_is_no_room() -> None:
    spender = Spender(0.1)
    spender.use(0.2, 10)
    assert spender.use(0.09, 7200) == []
