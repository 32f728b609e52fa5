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


@pytest.mark.parametrize(
    ("cpu_ns", "ticks"),
    [
        # Refilled by four in five ticks.
        (CHEAP_NS, [100, 101, 102, 103, 104, 105, 106, 107]),
        (2_500_000, [100, 101, 102, 105, 110]),
        (1 << 40, [100, 101, 110]),
    ],
)
def test_a_pod_and_its_containers_are_found_in_successive_ticks(
    cpu_ns: int, ticks: list[int]
) -> None:
    assert scans(ScanBudget(9, 0), range(100, 112), cpu_ns)[: len(ticks)] == ticks


@pytest.mark.parametrize(("cpu_ns", "most"), [(CHEAP_NS, 248), (4_000_000, 40), (1 << 40, 31)])
def test_in_the_long_run_their_number_is_limited(cpu_ns: int, most: int) -> None:
    # A minute: four a second, less if they are expensive, and those at once in front.
    assert most - 9 <= len(scans(ScanBudget(9, 0), range(100, 400), cpu_ns)) <= most


def test_a_quiet_time_gives_back_no_more_than_was_taken() -> None:
    budget = ScanBudget(3, 0)
    first = scans(budget, range(100, 200), CHEAP_NS)
    later = scans(budget, range(10_000, 10_100), CHEAP_NS)
    assert [tick - 9_900 for tick in later] == first
