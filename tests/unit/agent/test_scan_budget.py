# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""ScanBudget: scans in successive ticks after a quiet time, and their number in the long run."""

import pytest

from controller.agent.reload import ScanBudget

TICK_NS = 200_000_000
CHEAP_NS = 100_000


def scans(budget: ScanBudget, ticks: range, cpu_ns: int) -> list[int]:
    """Return the ticks in which a scan ran, if one is wanted in each of them."""
    ran = []
    for tick in ticks:
        if budget.allows(tick * TICK_NS):
            budget.spend(cpu_ns)
            ran.append(tick)
    return ran


def test_a_pod_and_its_containers_are_found_in_successive_ticks() -> None:
    assert scans(ScanBudget(3, 0), range(100, 106), CHEAP_NS) == [100, 101, 102, 105]


@pytest.mark.parametrize(("cpu_ns", "most"), [(CHEAP_NS, 62), (4_000_000, 40), (1 << 40, 31)])
def test_in_the_long_run_their_number_is_limited(cpu_ns: int, most: int) -> None:
    # A minute: one a second, less if they are expensive, and those at once in front.
    assert most - 3 <= len(scans(ScanBudget(3, 0), range(100, 400), cpu_ns)) <= most


def test_a_quiet_time_gives_back_no_more_than_was_taken() -> None:
    budget = ScanBudget(3, 0)
    scans(budget, range(100, 110), CHEAP_NS)
    assert scans(budget, range(10_000, 10_006), CHEAP_NS) == [10_000, 10_001, 10_002, 10_005]
