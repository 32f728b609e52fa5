# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One amount for all workloads below a common parent."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.channels.rungs.common_parent import lower_floors, parent_amounts
from controller.core.model import CgroupId

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
