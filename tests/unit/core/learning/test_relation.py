# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The relation between an indicator and the service's own latency."""

import math
from random import Random

import pytest

from controller.core.learning.normal import Distribution
from controller.core.learning.relation import Relation


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
