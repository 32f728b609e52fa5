# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Harm of workloads relative to each other, and the division of a squeeze by it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.harm.cut import (
    Claim,
    allocate,
    divide_harm,
    lower_floors,
    parent_amounts,
    relative_harm,
    share_unused,
)
from controller.core.model import CgroupId

HOG, MOUSE = CgroupId("cpu", 1), CgroupId("cpu", 2)
WANTS = {HOG: 2.0, MOUSE: 1.0}


def test_a_squeezed_culprit_stays_the_culprit() -> None:
    """Squeezed to a tenth it inflicts a tenth; the other, harmless per CPU, inflicts more now."""
    free = relative_harm([Claim(1.0, {HOG: 2.0, MOUSE: 0.05}, WANTS)], WANTS)
    squeezed = relative_harm([Claim(1.0, {HOG: 0.2, MOUSE: 0.05}, {**WANTS, HOG: 0.2})], WANTS)
    assert free[HOG] == squeezed[HOG] == 1.0
    assert squeezed[MOUSE] == pytest.approx(free[MOUSE], rel=0.1)


def test_without_deeds_all_do_the_same_harm_per_cpu() -> None:
    assert relative_harm([Claim(1.0, {}, WANTS)], WANTS) == {HOG: 1.0, MOUSE: 1.0}


def test_claims_count_by_their_weight_and_not_by_the_amount_of_their_deeds() -> None:
    claims = [Claim(1.0, {HOG: 1e9}, WANTS), Claim(1.0, {MOUSE: 1e-3}, WANTS)]
    assert relative_harm(claims, WANTS) == {HOG: 1.0, MOUSE: 1.0}


def test_what_seems_harmless_is_cut_last_and_not_spared() -> None:
    least = {HOG: 0.05, MOUSE: 0.05}
    harm = relative_harm([Claim(1.0, {HOG: 1.0}, WANTS)], WANTS)
    half = divide_harm(0.5, 3.0, WANTS, least, harm)
    assert half[HOG] < 0.4
    assert half[MOUSE] > 0.95
    assert divide_harm(1.0, 3.0, WANTS, least, harm) == pytest.approx(least)


def test_equal_steps_of_demand_are_equal_factors_of_harm() -> None:
    least = {HOG: 0.05, MOUSE: 0.05}
    harm = {HOG: 1.0, MOUSE: 0.1}
    sums = [
        sum(harm[key] * cpus for key, cpus in divide_harm(d / 4, 3.0, WANTS, least, harm).items())
        for d in range(5)
    ]
    factors = [later / former for former, later in pairwise(sums)]
    assert factors == pytest.approx([factors[0]] * 4, rel=0.01)


def test_what_a_culprit_leaves_goes_to_the_harmless_up_to_their_wants() -> None:
    wants = {HOG: 4.0, MOUSE: 6.0}
    amounts = {HOG: 0.5, MOUSE: 4.8}  # of a ceiling of 8
    shared = share_unused(amounts, 8.0, wants, frozenset({MOUSE}))
    assert shared == {HOG: 0.5, MOUSE: 6.0}
    assert share_unused(amounts, 6.0, wants, frozenset({MOUSE}))[MOUSE] == pytest.approx(5.5)
    assert share_unused(amounts, 8.0, wants, frozenset()) == amounts
    # A workload that is cut itself gets nothing back.
    assert share_unused(amounts, 8.0, wants, frozenset({HOG})) == amounts


def test_a_total_below_the_wants_is_cut_by_the_same_part_above_the_least() -> None:
    wants, least = {"a": 2.5, "b": 0.5, "c": 0.25}, {"a": 0.5, "b": 0.25, "c": 0.25}
    assert allocate(2.125, wants, least) == pytest.approx({"a": 1.5, "b": 0.375, "c": 0.25})
    assert allocate(0.1, wants, least) == pytest.approx(least)
    assert allocate(0.1, {}, {}) == {}


def test_a_total_above_the_wants_is_spread_in_proportion() -> None:
    shares = allocate(2.0, {"a": 0.75, "b": 0.25}, {"a": 0.05, "b": 0.05})
    assert shares == pytest.approx({"a": 1.5, "b": 0.5})


NUMBERS = st.floats(1e-3, 100.0)


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, st.floats(0.02, 1.0)), min_size=1, max_size=8),
    NUMBERS,
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_more_demand_gives_no_workload_more(
    terms: list[tuple[float, float, float]], ceiling: float, one: float, other: float
) -> None:
    wants = {number: want for number, (want, _, _) in enumerate(terms)}
    least = {number: min(want, low) for number, (want, low, _) in enumerate(terms)}
    harm = {number: each for number, (_, _, each) in enumerate(terms)}
    less, more = sorted((one, other))
    mild = divide_harm(less, ceiling, wants, least, harm)
    hard = divide_harm(more, ceiling, wants, least, harm)
    for number in wants:
        assert least[number] * 0.999 <= hard[number] <= mild[number] * 1.02


@given(
    st.lists(st.tuples(NUMBERS, st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=8),
    NUMBERS,
)
def test_what_is_unused_is_shared_within_ceiling_and_wants(
    terms: list[tuple[float, float, bool]], ceiling: float
) -> None:
    wants = {number: want for number, (want, _, _) in enumerate(terms)}
    scale = min(1.0, ceiling / sum(wants.values()))
    amounts = {number: part * scale * want for number, (want, part, _) in enumerate(terms)}
    harmless = frozenset(number for number, (_, _, each) in enumerate(terms) if each)
    shared = share_unused(amounts, ceiling, wants, harmless)
    assert sum(shared.values()) <= ceiling * 1.001
    for number, amount in amounts.items():
        assert amount <= shared[number] <= wants[number] * 1.001
        assert number in harmless or shared[number] == amount


ONE, TWO, THREE = (CgroupId("v2", id_) for id_ in (1, 2, 3))
PARENT = CgroupId("v2", 9)
BELOW = {ONE: PARENT, TWO: PARENT}
LEAST = 0.001


def test_floors_that_fit_are_kept() -> None:
    floors = {ONE: 0.1, TWO: 0.2}
    assert lower_floors(floors, BELOW, 0.31) == floors


def test_only_workloads_with_a_parent_have_lower_floors() -> None:
    floors = lower_floors({ONE: 0.1, TWO: 0.1, THREE: 0.2}, BELOW, 0.2)
    assert floors == pytest.approx({ONE: 0.05, TWO: 0.05, THREE: 0.2})


def test_a_parent_gets_what_its_workloads_are_to_get() -> None:
    wanted = {ONE: 0.0003, TWO: 0.0009, THREE: 0.0001}
    own = dict.fromkeys(wanted, LEAST)
    assert parent_amounts(wanted, own, BELOW, {}, LEAST) == {PARENT: pytest.approx(0.0012)}


def test_a_workload_that_is_not_limited_itself_keeps_its_part() -> None:
    # A culprit at its floor beside an innocent workload: the difference does not matter.
    wanted, own = {ONE: 0.0003, TWO: 2.0}, {ONE: LEAST}
    assert parent_amounts(wanted, own, BELOW, {}, LEAST) == {}


def test_at_the_edge_a_parent_stays_as_it_is() -> None:
    wanted, own = {ONE: 0.100, TWO: 0.100}, {ONE: 0.103, TWO: 0.103}
    assert parent_amounts(wanted, own, BELOW, {}, LEAST) == {}
    assert parent_amounts(wanted, own, BELOW, {PARENT: 0.19}, LEAST) == {PARENT: 0.2}


IDS = st.integers(0, 40).map(lambda id_: CgroupId("v2", id_))


@given(
    st.dictionaries(IDS, st.floats(LEAST, 1.0), min_size=1),
    st.sets(IDS),
    st.floats(0.01, 4.0),
)
def test_lowered_floors_exceed_the_most_only_by_workloads_without_a_parent(
    floors: dict[CgroupId, float], below: set[CgroupId], most: float
) -> None:
    parents = dict.fromkeys(below, PARENT)
    lowered = lower_floors(floors, parents, most)
    assert lowered.keys() == floors.keys()
    assert all(lowered[each] <= floors[each] for each in floors)
    alone = sum(floor for each, floor in floors.items() if each not in below)
    assert sum(lowered.values()) <= max(most, most + alone) * (1 + 1e-9) or lowered == floors
