# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The wrapper around simple-pid in a plant with lag and dead time."""

from collections import deque

import pytest

from controller.core.loop.pid import PidLoop, clip, dead_zone, deviation
from controller.core.settings import Gains
from tests.support.loops.closed_loop import make_spec

GAINS = Gains(kp=0.2, ti_s=2.0, td_s=0.0)
DT = 0.2


def settled(gains: Gains, bound: float, disturbance: float, ticks: int = 600) -> list[float]:
    """Return the deviations of a plant with a lag of 1 s behind a dead time of 1 s.

    The demand is limited to [0, *bound*].
    """
    loop = PidLoop(gains, 0.0)
    delayed: deque[float] = deque([0.0] * 5)
    error, deviations = 0.0, []
    for _ in range(ticks):
        applied = min(bound, max(0.0, loop.update(error, DT)))
        loop.track(applied, DT)
        delayed.append(applied)
        error += DT * (disturbance - 3.0 * delayed.popleft() - error)
        deviations.append(error)
    return deviations


def test_it_removes_a_constant_disturbance() -> None:
    deviations = settled(GAINS, 1.0, disturbance=1.5)
    assert max(deviations) > 0.5
    assert all(abs(value) < 0.02 for value in deviations[-100:])


def test_it_does_not_oscillate() -> None:
    deviations = settled(GAINS, 1.0, disturbance=1.5)[200:]
    assert max(deviations) - min(deviations) < 0.02


def test_the_output_is_kp_times_the_deviation_plus_its_integral() -> None:
    loop = PidLoop(GAINS, 0.3)
    assert loop.update(0.5, DT) == pytest.approx(0.3 + 0.1 * 0.5 * DT)
    assert loop.update(0.8, DT) == pytest.approx(0.3 + 0.1 * 1.3 * DT + 0.2 * 0.3)


def test_the_derivative_has_the_sign_of_the_change() -> None:
    loop = PidLoop(Gains(kp=0.2, ti_s=1e9, td_s=1.0), 0.0)
    loop.update(0.0, DT)
    assert loop.update(0.1, DT) == pytest.approx(0.2 * 0.1 + 0.2 * 0.1 / DT)


def test_a_loop_that_is_not_selected_tracks_the_applied_demand() -> None:
    """The demand of a loop below its sweet point stays just below that of one that squeezes."""
    loop = PidLoop(GAINS, 0.0)
    for _ in range(200):
        loop.update(-0.5, DT)
        loop.track(0.7, DT)
    assert 0.4 < loop.update(-0.5, DT) < 0.7


def test_saturation_is_left_at_once_however_long_it_lasted() -> None:
    def ticks_to_leave(saturated: int) -> int:
        loop = PidLoop(GAINS, 0.0)
        for _ in range(saturated):
            loop.update(1.0, DT)
            loop.track(1.0, DT)
        ticks = 0
        while loop.update(-0.5, DT) >= 1.0:
            loop.track(1.0, DT)
            ticks += 1
        return ticks

    assert ticks_to_leave(300) == ticks_to_leave(18_000) == 0


def test_start_and_retune_are_bumpless() -> None:
    loop = PidLoop(GAINS, 0.4)
    assert loop.update(1.0, 1e-9) == pytest.approx(0.4)
    for _ in range(10):
        before = loop.update(0.6, DT)
        loop.track(before, DT)
    loop.retune(Gains(kp=2.0, ti_s=5.0, td_s=0.0))
    assert loop.update(0.6, 1e-9) == pytest.approx(before)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2e6, 0.0), (4e6, 1.0), (1e6, -1.0), (8e6, 2.0), (1e9, 2.0), (1.0, -1.0)],
)
def test_deviation_is_a_clipped_log_ratio(value: float, expected: float) -> None:
    assert clip(deviation(value, 2e6, make_spec())) == pytest.approx(expected)


def test_the_dead_zone_is_continuous() -> None:
    assert dead_zone(0.1, 0.1) == 0.0
    assert dead_zone(-0.05, 0.1) == 0.0
    assert dead_zone(0.3, 0.1) == pytest.approx(0.2)
    assert dead_zone(-0.3, 0.1) == pytest.approx(-0.2)
