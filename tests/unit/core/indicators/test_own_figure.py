# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A figure that moves without the service's work is wrong; one that moves with it is not."""

import math

import pytest

from controller.core.indicators.own_figure import FigureCheck, Pace
from controller.core.units import NS_PER_SEC

TICK_S = 0.2
USUAL = Pace(math.log(1.5), math.log(3.0))


class Source:
    """A check that takes a figure and a pace in every tick."""

    def __init__(self) -> None:
        self.check = FigureCheck()
        self._time_ns = 0

    def run(self, seconds: float, value: float, pace: Pace = USUAL) -> bool:
        """Return whether the figure is wrong at the end."""
        for _ in range(round(seconds / TICK_S)):
            self._time_ns += round(TICK_S * NS_PER_SEC)
            self.check.update(value, pace, self._time_ns, TICK_S)
        return self.check.wrong


@pytest.fixture
def source() -> Source:
    source = Source()
    assert not source.run(60, 4e6)
    return source


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_figure_that_jumps_alone_is_wrong_at_once_and_for_as_long(
    source: Source, factor: float
) -> None:
    assert source.run(TICK_S, factor * 4e6)
    assert source.run(300, factor * 4e6)
    assert not source.run(TICK_S, 5e6)


def test_a_figure_moves_by_a_factor_of_three_by_itself(source: Source) -> None:
    assert not source.run(5, 12e6)
    assert not source.run(5, 1.4e6)


@pytest.mark.parametrize(
    "pace",
    [
        pytest.param(USUAL._replace(slowdown=USUAL.slowdown + 0.3), id="it works more slowly"),
        pytest.param(USUAL._replace(load=USUAL.load + 0.3), id="it has more to do"),
    ],
)
def test_a_figure_that_moves_with_the_work_is_right(source: Source, pace: Pace) -> None:
    assert not source.run(TICK_S, 4e6, pace)
    assert not source.run(20, 40e6, pace)


def test_nothing_is_judged_before_the_usual_figure_is_known() -> None:
    source = Source()
    source.run(15, 4e6)
    assert not source.run(1, 40e6)


def test_a_figure_that_stays_is_taken_as_it_is_in_the_end(source: Source) -> None:
    assert source.run(599, 40e6)
    assert not source.run(3, 40e6)
    assert source.run(60, 40e6) is False
    assert source.run(TICK_S, 4e6), "40 ms are usual now"
