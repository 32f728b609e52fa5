# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The measured relation of MBA values and bandwidth."""

import pytest

from controller.core.channels.stepped import MbaCurve
from controller.core.model import CgroupId
from controller.core.settings import MbaUnit, ResctrlFacts
from tests.support.loops.closed_loop import SECOND_NS

PERCENT = ResctrlFacts(domains=(0,), mba_min=10, mba_max=100, mba_step=10, bandwidth=True)


def test_half_the_bandwidth_is_half_on_any_percent_scale() -> None:
    """A value of 50 % leaves nine tenths of the bandwidth, so half of it is at a lower value."""
    curve = MbaCurve(PERCENT)
    user = CgroupId("cpu", 1)
    real = {100: 10e9, 50: 9e9, 20: 5e9}
    now_ns = 0
    for value in (100, 50, 20):
        for _ in range(60):
            now_ns += SECOND_NS
            curve.update(value, {user: real[value]}, now_ns)
    assert curve.part_at(100) == 1.0
    assert curve.part_at(50) == pytest.approx(0.9)
    assert curve.part_at(20) == pytest.approx(0.5)
    # Values that were not tried are interpolated linearly.
    assert curve.part_at(30) == pytest.approx(0.5 + 0.4 / 3)
    assert curve.part_at(10) == pytest.approx(0.25)


def test_an_idle_program_changes_nothing() -> None:
    curve = MbaCurve(PERCENT)
    user = CgroupId("cpu", 1)
    for second in range(60):
        curve.update(100, {user: 10e9}, second * SECOND_NS)
    for second in range(60, 200):
        curve.update(50, {user: 0.1e9}, second * SECOND_NS)
    assert curve.part_at(50) == 0.5


def test_without_a_measurement_the_scale_is_linear() -> None:
    curve = MbaCurve(PERCENT)
    for second in range(60):
        curve.update(40, {}, second * SECOND_NS)
    assert curve.part_at(40) == 0.4


@pytest.mark.parametrize(("unit", "value"), [(MbaUnit.ABSOLUTE, 40), (MbaUnit.MBPS, 4768)])
def test_absolute_units_are_parts_of_the_bandwidth_in_use(unit: MbaUnit, value: int) -> None:
    facts = ResctrlFacts(domains=(0,), mba_unit=unit, mba_min=1, mba_max=1 << 20, bandwidth=True)
    curve = MbaCurve(facts)
    for second in range(10):
        curve.update(1 << 20, {CgroupId("cpu", 1): 10e9}, second * SECOND_NS)
    assert curve.part_at(value) == pytest.approx(0.5, rel=0.01)
