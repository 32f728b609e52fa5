# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Geometry of the run-queue histogram, quantiles and arrival delays."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.indicators.measurement import (
    BUCKETS,
    LOWER_NS,
    UPPER_NS,
    arrival_delay_ns,
    difference,
    quantile_ns,
)
from tests.support.histogram import index_of


@pytest.mark.parametrize(
    ("wait_ns", "index"),
    [
        (0, 0),
        (1023, 0),
        (1024, 1),
        (1279, 1),
        (1280, 2),
        (2047, 4),
        (2048, 5),
        ((1 << 30) - 1, 80),
        (1 << 30, 81),
        (1 << 40, 81),
    ],
)
def test_geometry(wait_ns: int, index: int) -> None:
    assert index_of(wait_ns) == index
    assert BUCKETS == 82


def test_buckets_have_no_gaps() -> None:
    assert UPPER_NS[:-1] == LOWER_NS[1:]


@given(
    st.lists(st.integers(1024, (1 << 30) - 1), min_size=1, max_size=300),
    st.sampled_from([0.5, 0.95, 0.99]),
)
def test_quantiles_keep_the_stated_error(waits_ns: list[int], quantile: float) -> None:
    counts = [0] * BUCKETS
    for wait_ns in waits_ns:
        counts[index_of(wait_ns)] += 1
    estimate = quantile_ns(counts, quantile)
    assert estimate is not None
    # Any value between the neighbouring ranks is a true quantile.
    ordered = sorted(waits_ns)
    rank = quantile * len(ordered)
    low = ordered[max(0, min(len(ordered) - 1, int(rank - 1e-9)))]
    high = ordered[min(len(ordered) - 1, int(rank + 1e-9))]
    error = 1 / 4  # an octave has four buckets
    assert low * (1 - error) <= estimate <= high * (1 + error)


def test_quantiles_without_waits_and_above_the_scale() -> None:
    assert quantile_ns([0] * BUCKETS, 0.99) is None
    assert quantile_ns([0] * (BUCKETS - 1) + [5], 0.99) == 1 << 30


def test_difference() -> None:
    assert difference((3, 5), (1, 5)) == [2, 0]
    assert difference((3, 4), (1, 5)) is None
    assert difference((3, 4), (1,)) is None


def arrivals_by_hand(waits: list[float], span_ns: int, quantile: float) -> float:
    """Find by bisection the x that is exceeded with probability 1 - *quantile*."""
    low, high = 0.0, max(waits)
    for _ in range(100):
        x = (low + high) / 2
        probability = sum(max(0.0, wait - x) for wait in waits) / span_ns
        low, high = (x, high) if probability > 1 - quantile else (low, x)
    return low


@given(st.lists(st.integers(2000, 10**9), min_size=1, max_size=40))
def test_arrival_delay_is_the_wait_of_an_arrival_at_a_random_time(waits: list[int]) -> None:
    counts = [0] * BUCKETS
    for wait in waits:
        counts[index_of(wait)] += 1
    middles = [(LOWER_NS[b] + UPPER_NS[b]) / 2 for b in map(index_of, waits)]
    found = arrival_delay_ns(counts, 10**9, 0.99)
    assert found == pytest.approx(arrivals_by_hand(middles, 10**9, 0.99), rel=1e-6, abs=1)


def test_one_long_stall_shows_in_arrivals_and_not_in_waits() -> None:
    counts = [0] * BUCKETS
    counts[index_of(50_000)] = 999
    counts[index_of(80_000_000)] = 1
    wait_ns, delay_ns = quantile_ns(counts, 0.99), arrival_delay_ns(counts, 10**9, 0.99)
    assert wait_ns is not None and wait_ns < 100_000
    assert delay_ns is not None and delay_ns > 60_000_000


def test_rare_waits_delay_no_arrival() -> None:
    counts = [0] * BUCKETS
    assert arrival_delay_ns(counts, 10**9, 0.99) == 0
    counts[index_of(9_000_000)] = 1  # less than 1 % of the second
    assert arrival_delay_ns(counts, 10**9, 0.99) == 0
