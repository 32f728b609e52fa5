# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Intervals of few values, against textbook figures."""

import math

import pytest

from tests.compare.statistics import mean_interval, spread


def test_one_row_has_the_interval_of_student() -> None:
    # Deviation sqrt(2.5), t of 4 degrees of freedom 2.776.
    middle, low, high = mean_interval([[1.0, 2.0, 3.0, 4.0, 5.0]])
    half = 2.776 * math.sqrt(2.5 / 5)
    assert (middle, low, high) == pytest.approx((3.0, 3.0 - half, 3.0 + half))


def test_equal_rows_add_their_degrees_of_freedom() -> None:
    # Two rows of like variance 1: the variance of the mean is (1/2 + 1/2) / 4, of 2 degrees.
    row = [0.0, math.sqrt(2.0)]
    middle, low, high = mean_interval([row, row])
    assert middle == pytest.approx(math.sqrt(0.5))
    assert high - low == pytest.approx(2 * 4.303 * 0.5)


def test_a_row_without_spread_adds_no_degrees_of_freedom() -> None:
    # The second row's mean moves the estimate; the uncertainty is that of the first, halved.
    alone = mean_interval([[1.0, 2.0, 3.0]])
    middle, low, high = mean_interval([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]])
    assert middle == 3.0
    assert high - low == pytest.approx((alone[2] - alone[1]) / 2)


def test_rows_count_the_same_however_many_values_they_have() -> None:
    assert mean_interval([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0]])[0] == 0.5


def test_a_single_value_has_an_endless_interval() -> None:
    assert mean_interval([[1.0, 2.0], [3.0]]) == (2.25, -math.inf, math.inf)
    assert mean_interval([[3.0, 3.0]]) == (3.0, 3.0, 3.0)


def test_the_deviation_is_at_least_the_rounding_error() -> None:
    middle, low, high = mean_interval([[0.0] * 5], least_deviation=0.02)
    half = 2.776 * 0.02 / math.sqrt(5)
    assert (middle, low, high) == pytest.approx((0.0, -half, half))


@pytest.mark.parametrize("rows", [[], [[]], [[1.0], []]])
def test_without_values_there_is_no_mean(rows: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_interval(rows)


def test_the_spread_is_median_lowest_highest() -> None:
    assert spread([5.0, 1.0, 2.0]) == (2.0, 1.0, 5.0)
