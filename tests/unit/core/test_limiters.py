# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reactions of a service, pauses that double, hold-off latch, headroom and step selector."""

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.knobs.grants import SteadyAmounts
from controller.core.limiters import (
    Backoff,
    Headroom,
    HoldOffLatch,
    LowPass,
    StepSelector,
    has_fallen,
    has_risen,
)
from controller.core.model import CgroupId
from tests.support.loops.closed_loop import SECOND_NS


def test_latch_holds_and_doubles_its_hold_when_needed_again_soon() -> None:
    latch = HoldOffLatch(10)
    assert not latch.update(False, 0)
    assert latch.update(True, 0)
    assert latch.update(False, 9)
    assert not latch.update(False, 10)
    assert latch.update(True, 15)
    assert latch.update(False, 34)
    assert not latch.update(False, 35)
    assert latch.update(True, 100)
    assert not latch.update(False, 110)


def test_headroom_falls_at_once_and_rises_slowly() -> None:
    headroom = Headroom(2.0)
    assert headroom.update(0, 0.2, 1.9, 1.5) == pytest.approx(0.4)
    assert headroom.update(SECOND_NS, 0.2, 1.9, 0.5) == pytest.approx(0.4)
    # The peak is 2 s old, so it rises by a tenth of the way in 0.2 s.
    assert headroom.update(3 * SECOND_NS, 0.2, 1.9, 0.5) == pytest.approx(0.5)
    assert headroom.update(4 * SECOND_NS, 0.2, 1.9, 5.0) == 0.0


def test_step_selector_holds_a_setting_longer_when_it_was_needed_again_soon() -> None:
    steps = StepSelector()
    edges = [0.0, 0.5, 1.0]

    def level_at(second: int, part: float) -> int:
        steps.set_part(part, edges, second * SECOND_NS)
        return steps.level

    assert level_at(0, 0.7) == 2
    assert steps.set_part(0.2, edges, 19 * SECOND_NS) == 0.5
    assert level_at(20, 0.2) == 1
    assert level_at(50, 0.7) == 2
    assert level_at(89, 0.2) == 2
    assert level_at(90, 0.2) == 1


def test_an_amount_stays_until_another_one_differs_enough() -> None:
    steady, job = SteadyAmounts(), CgroupId("v2", 7)

    def amount_at(second: float, wanted: float) -> float:
        return steady.update({job: wanted}, 0.05, int(second * SECOND_NS))[job]

    assert amount_at(0, 2.0) == 2.0
    assert amount_at(1, 2.45) == 2.0
    assert amount_at(2, 2.5) == 2.5
    assert amount_at(3, 2.3) == 2.5
    assert amount_at(4, 2.2) == 2.2
    assert amount_at(5, 2.4) == 2.2
    assert amount_at(23.9, 2.4) == 2.2
    assert amount_at(24, 2.4) == 2.4  # 20 s after the last change
    assert amount_at(50, 2.49) == 2.4  # noise
    assert amount_at(51, 0.05) == 0.05
    assert amount_at(51.2, 0.049) == 0.049  # the floor fell


def test_an_amount_that_was_gone_begins_anew() -> None:
    steady, job = SteadyAmounts(), CgroupId("v2", 7)
    assert steady.update({job: 2.0}, 0.05, 0) == {job: 2.0}
    assert steady.update({}, 0.05, 1) == {}
    assert steady.update({job: 2.1}, 0.05, 2) == {job: 2.1}


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
