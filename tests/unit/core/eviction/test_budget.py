# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What evictions for different reasons share."""

import pytest

from controller.core.eviction.budget import EvictionBudget, EvictionHistory
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult
from controller.core.settings import EvictionLimits
from controller.core.units import NS_PER_SEC

HOUR_NS = 3600 * NS_PER_SEC
JOB = CgroupId("cpu", 1)


def answer(result: EvictionResult, wait_ns: int = 0) -> EvictionAnswer:
    return EvictionAnswer(JOB, Channel.CPU, result, "because", wait_ns)


@pytest.mark.parametrize("result", list(EvictionResult))
def test_what_evicts_nothing_is_taken_back_and_no_other(result: EvictionResult) -> None:
    evicts = {
        *(EvictionResult.EVICTED, EvictionResult.UNANSWERED),
        *(EvictionResult.FROZEN, EvictionResult.KILLED),
    }
    budget = EvictionBudget(EvictionLimits(2), EvictionHistory())
    budget.spend(1)
    budget.spend(2)
    assert not budget.allows(3)
    for _ in range(2):
        budget.take(answer(result), 1, 3)
        assert budget.asked_ns == ((1, 2) if result in evicts else (2,))
    assert budget.allows(3) is (result not in evicts)


def test_after_an_hour_an_eviction_does_not_count() -> None:
    budget = EvictionBudget(EvictionLimits(1), EvictionHistory((5,), not_before_ns=7))
    assert not budget.allows(5 + HOUR_NS - 1)
    assert budget.allows(5 + HOUR_NS)
    assert not EvictionBudget(EvictionLimits(1), EvictionHistory((), 7)).allows(6)


@pytest.mark.parametrize(
    ("result", "wait_ns", "excluded_ns"),
    [
        (EvictionResult.REFUSED, 5, 5),
        (EvictionResult.REFUSED, 0, 300 * NS_PER_SEC),
        (EvictionResult.FROZEN, 5, 5),
        (EvictionResult.KILLED, 0, 0),
        (EvictionResult.EVICTED, 5, 0),
        (EvictionResult.HELD, 5, 0),
    ],
)
def test_an_excluded_workload_is_a_candidate_again_later(
    result: EvictionResult, wait_ns: int, excluded_ns: int
) -> None:
    budget = EvictionBudget(EvictionLimits(1), EvictionHistory())
    budget.take(answer(result, wait_ns), 0, 10)
    assert budget.is_candidate(JOB, 10 + excluded_ns)
    assert not excluded_ns or not budget.is_candidate(JOB, 9 + excluded_ns)
    assert budget.is_candidate(CgroupId("cpu", 2), 10)
