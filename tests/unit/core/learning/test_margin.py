# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The margin between a sweet point and an objective."""

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.learning.margin import MISSED, Margin


def misses(margin: Margin, scatter: float, number: int, seed: int = 1) -> float:
    """Return the share of *number* figures above the objective.

    They scatter, normally distributed as logarithms, around the sweet point, at which a loop holds
    their average.
    """
    random = Random(seed)
    missed = 0
    for _ in range(number):
        figure = margin.ratio * math.exp(random.gauss(0.0, scatter))
        missed += figure > 1
        margin.add(figure, is_squeezed=True)
    return missed / number


@pytest.mark.parametrize("scatter", [0.05, 0.1, 0.2, 0.3])
def test_few_figures_miss_the_objective_whatever_their_scatter(scatter: float) -> None:
    margin = Margin()
    misses(margin, scatter, 300)
    assert misses(margin, scatter, 10_000) <= 2 * MISSED


def test_a_figure_that_scatters_little_is_allowed_more() -> None:
    steady, noisy = Margin(), Margin()
    misses(steady, 0.04, 600)
    misses(noisy, 0.2, 600)
    assert noisy.ratio < 0.65
    assert steady.ratio > 0.85


def test_a_few_minutes_suffice() -> None:
    margin = Margin()
    at_first = margin.ratio
    misses(margin, 0.2, 120)
    assert at_first == pytest.approx(0.8, abs=0.01)
    assert margin.ratio < 0.7


def test_one_step_of_the_load_is_no_scatter() -> None:
    margin = Margin()
    misses(margin, 0.05, 300)
    before = margin.spread
    margin.add(20.0, is_squeezed=True)
    margin.add(0.8, is_squeezed=True)
    assert margin.spread < before + 0.03


def test_figures_without_a_squeeze_say_nothing() -> None:
    margin = Margin()
    for figure in (0.2, 3.0, 0.5, 7.0):
        margin.add(figure, is_squeezed=False)
    assert margin.state == Margin().state


def test_a_figure_that_was_read_twice_counts_once() -> None:
    once, often = Margin(), Margin()
    for figure in (0.7, 1.2, 0.8, 0.6):
        once.add(figure, is_squeezed=True)
        for _ in range(5):
            often.add(figure, is_squeezed=True)
    assert often.state == once.state


def test_an_equal_margin_is_made_from_its_state() -> None:
    margin = Margin()
    misses(margin, 0.2, 100)
    assert Margin(*margin.state).ratio == margin.ratio


@given(
    st.lists(st.tuples(st.floats(1e-9, 1e9), st.booleans()), max_size=200),
    st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)),
)
def test_the_sweet_point_stays_within_the_objective(
    figures: list[tuple[float, bool]], state: tuple[float, float]
) -> None:
    margin = Margin(*state)
    for figure, is_squeezed in figures:
        margin.add(figure, is_squeezed)
        assert 0.4 <= margin.ratio < 1.0
