# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a reaction of a service is, and pauses that double."""

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.limiters import Backoff, LowPass, has_fallen, has_risen

deviations = st.floats(-1.0, 20.0)


def test_low_pass_starts_at_its_first_input() -> None:
    low_pass = LowPass()
    assert low_pass.update(1.0, 0.2, 2.0) == 1.0
    assert low_pass.update(0.0, 2.0, 2.0) == pytest.approx(math.exp(-1))
    assert low_pass.update(5.0, 0.2, 0.0) == 5.0


@pytest.mark.parametrize(
    ("before", "after"), [(-1.0, -0.4), (0.0, 0.6), (0.9, 1.45), (2.0, 2.9), (6.0, 8.6)]
)
def test_more_than_noise_and_three_tenths_have_risen(before: float, after: float) -> None:
    assert has_risen(after, before)
    assert not has_risen(after - 0.2, before)


@pytest.mark.parametrize(("before", "after"), [(0.3, 0.2), (1.0, 0.66), (6.0, 4.0)])
def test_three_tenths_less_have_fallen(before: float, after: float) -> None:
    assert has_fallen(after, before)
    assert not has_fallen(1.1 * after, before)


@given(deviations, deviations)
def test_nothing_rises_and_falls(deviation: float, before: float) -> None:
    assert not (has_risen(deviation, before) and has_fallen(deviation, before))


def test_a_pause_doubles_up_to_the_longest_until_it_is_reset() -> None:
    backoff = Backoff(5, 18)
    assert backoff.pause == 0
    assert [backoff.next() for _ in range(4)] == [5, 10, 18, 18]
    backoff.reset()
    assert backoff.next() == 5
