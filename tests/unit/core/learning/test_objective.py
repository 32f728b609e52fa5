# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The relation between an indicator and a service's latency, and the margin below an objective."""

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.learning.normal import Distribution
from controller.core.learning.objective import MISSED, Margin, Relation


def fed(
    number: int = 2000,
    slope: float = 2.0,
    at_normal: float = 0.5,
    spread: float = 0.2,
    noise: float = 0.05,
    seed: int = 1,
    relation: Relation | None = None,
) -> Relation:
    """Latency is *at_normal* of the objective at x = 0 and grows with e to the *slope* x."""
    random = Random(seed)
    relation = relation or Relation()
    for _ in range(number):
        x = abs(random.gauss(0.0, spread))
        y = math.log(at_normal) + slope * x + random.gauss(0.0, noise)
        relation.add(x, math.exp(y))
    return relation


def test_the_objective_is_reached_where_the_latency_says() -> None:
    # ln 2 / 2 = 0.347; the margin is twice the noise.
    allowed = fed().allowed
    assert allowed is not None
    assert 0.26 < allowed < 0.347


def test_noise_lowers_what_is_allowed() -> None:
    quiet, noisy = fed(noise=0.02).allowed, fed(noise=0.2).allowed
    assert quiet is not None and noisy is not None
    assert noisy < quiet - 0.05


def test_nothing_is_known_from_few_pairs_or_without_a_relation() -> None:
    assert fed(number=100).allowed is None
    assert fed(spread=0.001).allowed is None
    assert fed(slope=0.0).allowed is None
    assert fed(slope=-1.0).allowed is None
    assert Relation().step is None
    assert Relation().allowed is None


def test_what_was_not_seen_is_not_allowed_but_for_a_step() -> None:
    """At a fifth of the objective the line would allow x = 0.8; no x above 0.3 was ever seen."""
    allowed = fed(at_normal=0.2, spread=0.1).allowed
    assert allowed is not None
    assert 0.2 < allowed < 0.35


def test_a_step_is_taken_while_the_objective_is_kept_and_nothing_is_known() -> None:
    calm = fed(spread=0.005, noise=0.05)
    assert calm.allowed is None
    assert calm.step == pytest.approx(0.063, abs=0.01)
    missed = fed(spread=0.005, at_normal=1.1, noise=0.05)
    assert missed.step is None
    for _ in range(10):  # a hog that was squeezed at once: that says nothing about small values
        calm.add(0.8, 3.0)
    assert calm.step is not None


def test_a_cause_that_the_indicator_does_not_show_lowers_what_is_allowed() -> None:
    relation = fed()
    before = relation.allowed
    random = Random(2)
    for _ in range(600):  # another resource: the latency doubles at normal values
        relation.add(abs(random.gauss(0.0, 0.2)), 2.0 * math.exp(random.gauss(0.0, 0.05)))
    after = relation.allowed
    assert before is not None
    assert after is None or after < before - 0.1


def test_an_object_made_from_the_state_of_another_goes_on_alike() -> None:
    relation = fed()
    sums, kept = relation.state
    other = Relation(sums, Distribution(kept.bins.items()))
    assert other.allowed == relation.allowed
    fed(number=50, seed=3, relation=relation)
    fed(number=50, seed=3, relation=other)
    assert other.allowed == relation.allowed


@pytest.mark.parametrize("sums", [(), (1.0,), (1.0,) * 8])
def test_sums_of_another_form_are_dropped(sums: tuple[float, ...]) -> None:
    assert Relation(sums).pairs == 0


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
