# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Label selectors: which labels they select, as the API server would."""

import pytest

from controller.config.label_selector import LabelSelector, Operator, Requirement, equal

POOL = {"pool": "canary", "zone": "a", "empty": ""}


def requirement(key: str, operator: str, *values: str) -> Requirement:
    return Requirement(key, Operator(operator), frozenset(values))


@pytest.mark.parametrize(
    ("selects", "each", "text"),
    [
        (True, requirement("pool", "In", "canary", "test"), "pool in (canary, test)"),
        (True, requirement("pool", "In", "canary"), "pool=canary"),
        (False, requirement("pool", "In", "prod"), "pool=prod"),
        (False, requirement("team", "In", "a"), "team=a"),
        (True, requirement("empty", "In", ""), "empty="),
        (False, requirement("pool", "NotIn", "canary"), "pool not in (canary)"),
        (True, requirement("pool", "NotIn", "prod"), "pool not in (prod)"),
        (True, requirement("team", "NotIn", "a"), "team not in (a)"),  # without the label
        (True, requirement("empty", "Exists"), "empty"),
        (False, requirement("team", "Exists"), "team"),
        (True, requirement("team", "DoesNotExist"), "no team"),
        (False, requirement("empty", "DoesNotExist"), "no empty"),
    ],
)
def test_requirements(selects: bool, each: Requirement, text: str) -> None:
    assert each.holds(POOL) is selects
    assert LabelSelector((each,)).matches(POOL) is selects
    assert str(each) == text


def test_all_of_a_selector_must_hold() -> None:
    both = LabelSelector((*equal({"zone": "a", "pool": "canary"}),))
    assert str(both) == "pool=canary, zone=a"
    assert both.matches(POOL)
    assert not both.matches({"pool": "canary"})
    assert not both.matches({**POOL, "zone": "b"})
    assert LabelSelector(()).matches({})
