# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.indicators.histogram import (
    BUCKETS,
    LOWER_NS,
    MAX_RELATIVE_ERROR,
    UPPER_NS,
    difference,
    index_of,
    quantile_ns,
)


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


@given(st.integers(0, (1 << 30) - 1))
def test_every_wait_lies_in_its_bucket(wait_ns: int) -> None:
    index = index_of(wait_ns)
    assert LOWER_NS[index] <= wait_ns < UPPER_NS[index]


def test_buckets_touch() -> None:
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
    assert low * (1 - MAX_RELATIVE_ERROR) <= estimate <= high * (1 + MAX_RELATIVE_ERROR)


def test_quantiles_of_nothing_and_of_everything_too_long() -> None:
    assert quantile_ns([0] * BUCKETS, 0.99) is None
    assert quantile_ns([0] * (BUCKETS - 1) + [5], 0.99) == 1 << 30


def test_difference() -> None:
    assert difference((3, 5), (1, 5)) == [2, 0]
    assert difference((3, 4), (1, 5)) is None
    assert difference((3, 4), (1,)) is None
