# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a trial compares, from the page of an agent."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.config.candidate import parse_candidate
from controller.config.policies import Change, PoliciesInForce, PolicyInForce
from controller.telemetry.report import PublishedState
from controller.trial.comparison import (
    candidate,
    comparison,
    configuration,
    is_in_force,
    others_in_force,
)
from tests.support.reports import report

SETS: dict[str, Any] = {
    "replace_profiles": {"default": "fast"},
    "reserve": "0cpu",
    "law": {"find_harm": False, "fast_rise": None},
}
CHANGES = (
    Change("law.find_harm", False, True),
    Change("replace_profiles.default", "fast", "default"),
)


def page(**fields: Any) -> dict[str, Any]:
    """Return the page of an agent with two policies in force."""
    entries = (
        PolicyInForce("night", 0, "always", {"reserve": "0cpu"}),
        PolicyInForce("canary", 1, "always", SETS),
    )
    candidate = parse_candidate("name: canary\nset: {reserve: 0cpu}\n", "file", 1.8e9)
    policies = PoliciesInForce(
        known=("night", "canary"),
        entries=entries,
        candidate=candidate,
        changes={"canary": CHANGES},
    )
    published = PublishedState(report=report(0, policies=policies, **fields))
    found: dict[str, Any] = json.loads(json.dumps(dict(published.status()), default=str))
    return found


def test_what_the_policy_sets_is_read_from_the_page() -> None:
    found = page()
    changes = (
        ("law.find_harm", "false", "true"),
        ("replace_profiles.default", "fast", "default"),
    )
    also = ("law.find_harm=false", "reserve=0cpu")
    assert comparison("canary", found) == ({"default": "fast"}, also, changes)
    assert comparison("night", found) == ({}, ("reserve=0cpu",), ())
    assert comparison("other", found) == ({}, (), ())
    assert is_in_force("canary", found) and not is_in_force("other", found)
    assert others_in_force("canary", found) == ["night"]


def test_the_candidate_is_known_by_what_it_sets_and_by_its_end() -> None:
    digest = parse_candidate("name: x\nset: {reserve: 0cpu} # the same\n", "other").digest
    assert candidate(page()) == (digest, 1.8e9)
    other = parse_candidate("name: canary\nset: {reserve: 1cpu}\n", "file")
    assert other.digest != digest
    assert candidate({"policies": {"candidate": None}}) is None
    assert candidate({}) is None


def test_the_configuration_is_that_of_files_and_of_the_cluster() -> None:
    assert configuration(page(config_digest="a" * 64)) == ("a" * 64, "")
    cluster = {"profiles": {"digest": "b" * 64}}
    assert configuration({**page(), "cluster": cluster}) == ("", "b" * 64)
    assert configuration({}) == ("", "")


_json = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["policy", "sets", "replaces", "changes", "x"]), inner)
    ),
    max_leaves=10,
)


@given(_json)
def test_any_page_gives_texts(value: object) -> None:
    policies = {"in_force": value, "candidate": value}
    found = {"policies": policies, "cluster": value, "config_digest": value}
    replaces, also, changes = comparison("x", found)
    texts = (*replaces, *replaces.values(), *also, *(each for row in changes for each in row))
    assert all(isinstance(each, str) for each in texts)
    assert candidate(found) is None or isinstance(value, dict)
    assert all(isinstance(each, str) for each in (*configuration(found),))
    assert all(isinstance(each, str) for each in others_in_force("x", found))
