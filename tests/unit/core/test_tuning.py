# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Gains and limits that follow from the configuration."""

import pytest

from controller.core.settings import KnobLimits
from controller.core.tuning import auto_gains, tightest_limits
from tests.support.loops.closed_loop import SECOND_NS

LIMITS = KnobLimits(floor=0.05, squeeze_per_s=2.0, release_step=0.1, release_spacing_ns=SECOND_NS)


def test_auto_gains_slow_down_with_the_window() -> None:
    fast = auto_gains(SECOND_NS, SECOND_NS // 5, 2 * SECOND_NS)
    slow = auto_gains(5 * SECOND_NS, SECOND_NS // 5, 2 * SECOND_NS)
    assert fast.kp == pytest.approx(2.0 / (4.0 * 3.0))
    assert fast.ti_s == 2.0
    assert fast.td_s == 0.0
    assert slow.kp / slow.ti_s < fast.kp / fast.ti_s


def test_the_tightest_of_several_limits() -> None:
    other = KnobLimits(
        floor=0.1, squeeze_per_s=1.0, release_step=0.05, release_spacing_ns=2 * SECOND_NS
    )
    both = tightest_limits([LIMITS, other], LIMITS)
    assert both == KnobLimits(
        floor=0.1, squeeze_per_s=2.0, release_step=0.05, release_spacing_ns=2 * SECOND_NS
    )
