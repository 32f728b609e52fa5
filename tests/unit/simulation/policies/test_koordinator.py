# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPUSuppress against the cases of upstream's own unit tests (80 CPUs), and its rules."""

import math

import numpy as np
import pytest

from controller.simulation.policies.koordinator import cpu_budget, next_cpuset, next_quota

CPUS = 80


@pytest.mark.parametrize(
    "budget, current, expected",
    [
        (20, 10, 18),  # by at most a tenth of the node
        (20, 19, 20),
        (20, 24, 20),  # a fall at once
        (20, 19.8, 19.8),  # within the dead band of 1 %
        (0.001, 0.8, 0.02),  # the floor, in spite of the dead band
        (20, math.inf, 20),  # the first one, without a limit of the step
    ],
)
def test_quota_of_upstream_cases(budget: float, current: float, expected: float) -> None:
    assert next_quota(budget, current, CPUS) == pytest.approx(expected)


def test_budget_is_the_threshold_less_all_other_use() -> None:
    assert cpu_budget(80, 0.65, 20, 2) == pytest.approx(30)
    assert cpu_budget(16, 0.65, 14) < 0


@pytest.mark.parametrize(
    "budget, current, expected",
    [(-3, 16, 2), (4.1, 16, 5), (16, 4, 6), (20, 16, 16), (9, math.inf, 9)],
)
def test_cpuset_has_at_least_two_cpus_and_grows_by_a_tenth(
    budget: float, current: float, expected: int
) -> None:
    assert next_cpuset(budget, current, 16) == expected


def test_seven_seconds_from_the_floor_to_forty_of_64_cpus() -> None:
    quota, ticks = 0.02, 0
    while quota < 40:
        quota, ticks = next_quota(40, quota, 64), ticks + 1
    assert ticks == 7


@pytest.mark.parametrize(
    "spread, rewrites, quota_spread", [(0.5, 217, 0.5), (1, 407, 1.0), (2, 487, 2.0), (4, 538, 3.6)]
)
def test_noise_of_the_services_passes_to_the_quota(
    spread: float, rewrites: int, quota_spread: float
) -> None:
    """A service of 20 CPUs with noise on 64 CPUs: the counts of an independent restatement."""
    random = np.random.default_rng(1)
    quota = cpu_budget(64, 0.65, 20)
    quotas = []
    for use in random.normal(20, spread, 600):
        quotas.append(next_quota(cpu_budget(64, 0.65, use), quota, 64))
        quota = quotas[-1]
    changed = np.count_nonzero(np.diff(quotas))
    assert changed == pytest.approx(rewrites, rel=0.12)
    assert np.std(quotas) == pytest.approx(quota_spread, rel=0.12)
