# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What evictions for different reasons share."""

from controller.core.eviction.budget import EvictionBudget, EvictionHistory
from controller.core.model import CgroupId
from controller.core.settings import EvictionLimits
from controller.core.units import NS_PER_SEC

HOUR_NS = 3600 * NS_PER_SEC
JOB = CgroupId("cpu", 1)


def test_a_refund_takes_back_its_own_eviction_and_no_other() -> None:
    budget = EvictionBudget(EvictionLimits(2), EvictionHistory())
    budget.spend(1)
    budget.spend(2)
    assert not budget.allows(3)
    budget.refund(1)
    assert budget.asked_ns == (2,)
    budget.refund(1)
    assert budget.asked_ns == (2,)
    assert budget.allows(3)


def test_after_an_hour_an_eviction_does_not_count() -> None:
    budget = EvictionBudget(EvictionLimits(1), EvictionHistory((5,), not_before_ns=7))
    assert not budget.allows(5 + HOUR_NS - 1)
    assert budget.allows(5 + HOUR_NS)
    assert not EvictionBudget(EvictionLimits(1), EvictionHistory((), 7)).allows(6)


def test_an_excluded_workload_is_a_candidate_again_later() -> None:
    budget = EvictionBudget(EvictionLimits(1), EvictionHistory())
    budget.exclude(JOB, 10, 5)
    assert not budget.is_candidate(JOB, 14)
    assert budget.is_candidate(JOB, 15)
    assert budget.is_candidate(CgroupId("cpu", 2), 14)
