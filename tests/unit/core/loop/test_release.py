# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pace of a release: acceleration, reaction, relapse and pause."""

import pytest

from controller.core.loop.channel_pace import ReleasePace
from controller.core.units import NS_PER_SEC

DT_S = 0.2


class Stepper:
    """A pace that is applied as it is returned."""

    def __init__(self, applied: float = 1.0) -> None:
        self.pace = ReleasePace()
        self.applied = applied
        self.now_ns = 0

    def run(self, deviation: float | None, seconds: float) -> list[float]:
        """Return the speeds of the ticks of *seconds* at *deviation*."""
        speeds = []
        for _ in range(round(seconds / DT_S)):
            self.now_ns += round(DT_S * NS_PER_SEC)
            pace = self.pace.update(self.applied, deviation, self.now_ns, DT_S)
            self.applied = max(pace.least, self.applied - pace.speed_per_s * DT_S)
            speeds.append(pace.speed_per_s)
        return speeds

    def relapse(self) -> None:
        """Squeeze again, as the loops do."""
        self.run(1.0, 1.0)
        self.applied = 1.0


def test_a_service_that_does_not_react_is_released_within_seconds() -> None:
    stepper = Stepper()
    speeds = stepper.run(-2.0, 3.6)
    assert speeds == sorted(speeds)
    assert speeds[0] == pytest.approx(0.08, rel=0.01)
    assert stepper.applied < 0.1


def test_the_speed_falls_with_the_distance_when_the_service_reacts() -> None:
    stepper = Stepper()
    fast = stepper.run(-2.0, 2.0)[-1]
    slow = stepper.run(-1.0, 4.0)
    assert fast > 0.2
    assert slow[-1] == pytest.approx(0.04, rel=0.01)


@pytest.mark.parametrize("deviation", [None, -0.2, 0.1])
def test_without_a_clear_distance_the_loops_alone_decide(deviation: float | None) -> None:
    assert set(Stepper().run(deviation, 5.0)) == {0.0}


def test_nothing_is_released_while_a_service_suffers() -> None:
    stepper = Stepper(0.6)
    assert stepper.pace.update(0.6, 0.5, 1, DT_S).least == 0.6


def test_after_a_relapse_the_level_before_it_is_held_for_a_pause_that_doubles() -> None:
    stepper = Stepper()
    stepper.run(-2.0, 3.0)
    before = stepper.applied
    stepper.relapse()
    pace = stepper.pace.update(1.0, -2.0, stepper.now_ns + 1, DT_S)
    assert pace.speed_per_s == 0.0
    assert before < pace.least < 1.0
    pauses = []
    for _ in range(3):
        began_ns = stepper.now_ns
        while stepper.run(-2.0, DT_S) == [0.0]:
            pass
        pauses.append(stepper.now_ns - began_ns)
        stepper.run(-2.0, 3.0)
        stepper.relapse()
    assert pauses[0] == pytest.approx(5 * NS_PER_SEC, rel=0.1)
    assert pauses[1] == pytest.approx(2 * pauses[0], rel=0.1)
    assert pauses[2] == pytest.approx(4 * pauses[0], rel=0.1)


def test_a_long_calm_time_ends_the_pauses() -> None:
    stepper = Stepper()
    stepper.run(-2.0, 3.0)
    stepper.relapse()
    stepper.run(-0.1, 300.0)
    stepper.relapse()
    assert stepper.run(-2.0, 3.0)[-1] > 0.1
