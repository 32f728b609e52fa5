# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Normal values at one load, and when they are sure."""

from random import Random

import pytest

from controller.core.learning.normal import LEAST_WINDOWS, Distribution, Normal, quantile


def filled(values: list[float]) -> Normal:
    normal = Normal()
    for value in values:
        normal.add(value)
    return normal


def noise(number: int, seed: int = 1, mean: float = 5.0, deviation: float = 0.2) -> list[float]:
    random = Random(seed)
    return [random.gauss(mean, deviation) for _ in range(number)]


def test_quantiles_of_two_distributions_together() -> None:
    first, second = Distribution(), Distribution()
    for value in range(50):
        first.add(float(value))
        second.add(float(value + 50))
    assert quantile((first,), 0.5) == pytest.approx(24.0, abs=1.0)
    assert quantile((first, second), 0.5) == pytest.approx(49.0, abs=1.0)
    assert quantile((first, second), 0.95) == pytest.approx(94.0, abs=1.0)
    assert quantile((Distribution(),), 0.5) == 0.0


def test_old_counts_fade() -> None:
    distribution = Distribution()
    for _ in range(20_000):
        distribution.add(1.0)
    for _ in range(8_000):
        distribution.add(9.0)
    assert distribution.total <= 7200
    assert quantile((distribution,), 0.5) == 9.0


def test_the_point_is_sure_after_enough_windows_and_not_before() -> None:
    normal = filled(noise(LEAST_WINDOWS - 5))
    assert not normal.is_sure
    assert 0 < normal.certainty < 1
    for value in noise(5, seed=2):
        normal.add(value)
    assert normal.certainty == 1.0
    assert normal.is_sure
    # Above nearly all of the values, however little is allowed.
    assert 5.3 <= normal.sweet_point(0.0) <= 5.5
    assert 5.9 <= normal.sweet_point(1.0) <= 6.1
    assert filled(noise(59)).is_sure
    slow = Normal()
    for value in noise(59):
        slow.add(value, least=60)
    assert not slow.is_sure


def test_values_of_two_states_are_not_sure() -> None:
    """Half of the time beside a hog: the state changes every five seconds."""
    values = []
    for block in range(60):
        values += noise(5, seed=block, mean=5.0 + 2.0 * (block % 2))
    normal = filled(values)
    assert not normal.is_sure
    assert normal.certainty < 0.5


def test_a_bad_hour_moves_a_sure_point_by_little() -> None:
    normal = filled(noise(3600))
    before = normal.sweet_point(0.5)
    for value in noise(600, seed=3, mean=7.0):
        normal.add(value)
    assert normal.is_sure
    assert before <= normal.sweet_point(0.5) < before + 0.2


def test_a_state_that_lasts_is_followed() -> None:
    normal = filled(noise(600))
    for value in noise(20_000, seed=3, mean=7.0):
        normal.add(value)
    assert normal.middle == pytest.approx(7.0, abs=0.1)


def test_an_object_made_from_the_parts_of_another_goes_on_alike() -> None:
    normal = filled(noise(333))
    other = Normal(normal.record(1))
    assert (other.certainty, other.spread) == (normal.certainty, normal.spread)
    for value in noise(500, seed=4, mean=5.2):
        normal.add(value)
        other.add(value)
    assert (other.middle, other.high) == (normal.middle, normal.high)


def test_damaged_bins_are_left_out() -> None:
    assert Distribution([(10**9, 3.0), (1, -5.0), (2, 1e300), (3, 2.0)]).bins == {3: 2.0}
