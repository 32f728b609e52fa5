# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A tree as text and as HTB classes."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from actuators.tc.shape import (
    ABSENT,
    ABSENT_CLSACT,
    LINK_CLASS,
    TIER_CEILING,
    Shape,
    Tree,
    decode,
    encode,
    htb_classes,
    shape_of,
)
from actuators.tc.tree import TcTree
from controller.config.sections.network import LimitRule
from controller.core.model import CgroupId, KnobValue, QosClass, Workload
from controller.reconcilers.network.pod_filters import class_of

RATES = st.integers(1000, 125_000_000_000)
TIERS = st.tuples(RATES, RATES)
SHAPES = st.builds(Shape, RATES, TIERS, TIERS, TIERS, st.lists(RATES, max_size=8).map(tuple))
TREES = st.builds(Tree, st.none() | SHAPES, st.none() | SHAPES).filter(any)


@given(TREES)
def test_text_and_back(tree: Tree) -> None:
    assert decode(encode(tree)) == tree


@given(SHAPES)
def test_classes_and_back(shape: Shape) -> None:
    classes = htb_classes(shape)
    assert shape_of(classes) == shape
    for one in classes:
        assert shape_of(set(classes) - {one}) != shape
        assert one.burst >= 65536 and one.cburst >= 65536
    known = {0}
    for one in classes:  # a parent precedes its children
        assert one.parent in known
        known.add(one.minor)


def test_tiers_borrow_in_their_order_and_leaves_have_the_least_rate() -> None:
    classes = {c.minor: c for c in htb_classes(Shape(100, (1, 2), (3, 4), (5, 6), (7,)))}
    assert [classes[number].prio for number in (1, 2, 3, 4)] == [0, 1, 2, 2]
    assert classes[3].parent == classes[4].parent == TIER_CEILING
    assert classes[TIER_CEILING].parent == LINK_CLASS
    assert classes[3].rate == classes[4].rate == 1000


@pytest.mark.parametrize("text", ["", "absent", "egress=1", "egress=1,2,3,4", "egress=x", "up=1"])
def test_texts_that_are_no_tree(text: str) -> None:
    with pytest.raises(ValueError):
        decode(text)


def test_partial_trees_match_complete_ones() -> None:
    tree, knob = KnobValue("egress=100,1-2,3-4,5-6"), TcTree()
    assert knob.matches(tree, KnobValue("partial (no filter)"))
    assert knob.matches(KnobValue("partial (no filter)"), tree)
    for absent in (ABSENT, ABSENT_CLSACT):
        assert not knob.matches(tree, absent) and not knob.matches(absent, tree)
    assert ABSENT_CLSACT in knob.intermediate_values(ABSENT, tree)


def test_class_of_a_workload() -> None:
    def workload(name: str, qos: QosClass) -> Workload:
        return Workload(name, CgroupId("v2", 1), "/x", qos, name, "")

    limits = (LimitRule("etl:*", 1, 1), LimitRule("*", 2, 2))
    assert class_of(workload("etl:one", QosClass.BE), limits) == 4
    assert class_of(workload("other", QosClass.BE), limits) == 5
    assert class_of(workload("other", QosClass.BE), limits[:1]) == 3
    assert class_of(workload("etl:one", QosClass.LS), limits) == 2
    assert class_of(workload("etl:one", QosClass.SYSTEM), limits) == 1
