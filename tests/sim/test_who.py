# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which job is limited on a node at request level, where only the service's slowdown shows it."""

from dataclasses import replace

import pytest

from tests.sim.who import observe
from tests.support.loops.closed_loop import LAW

BLIND = replace(LAW, find_harm=False)


@pytest.mark.parametrize(
    "name", ["who-smt-3", pytest.param("who-smt-8-changing", marks=pytest.mark.thorough)]
)
def test_the_neighbour_on_the_core_is_limited_and_the_others_are_not(name: str) -> None:
    run = observe(name, 1, 90)
    assert [phase.right for phase in run.phases] == [True] * len(run.phases)
    free = observe(name, 1, 90, law=None)
    assert run.innocent_work > 0.9 * free.innocent_work
    assert run.violating < 0.5 * free.violating
    assert run.writes_per_min < 30


def test_without_this_part_no_job_is_limited_for_a_neighbour_on_the_core() -> None:
    """Memory traffic, which is the other evidence, does not show it."""
    run = observe("who-smt-3", 1, 60, BLIND)
    assert run.limited == 0
    assert run.violating > 0.8


def test_harmless_neighbours_use_the_cpus_that_the_culprit_leaves() -> None:
    shared = observe("smt", 1, 80)
    limited = observe("smt", 1, 80, replace(LAW, spare_harmless=False))
    assert shared.innocent_work > 1.1 * limited.innocent_work
    assert shared.violating < limited.violating + 0.02


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_without_a_culprit_no_job_is_limited(seed: int) -> None:
    assert observe("harmless", seed, 60).limited == 0


KINDS = ("bandwidth", "smt", "cache", "wait")
WHO = [
    f"who-{kind}-{count}{changing}"
    for kind in KINDS
    for count in (3, 8)
    for changing in ("", "-changing")
]


@pytest.mark.soak
@pytest.mark.parametrize("name", WHO)
def test_a_culprit_is_limited_most_in_nearly_all_runs(name: str) -> None:
    rights: list[bool] = []
    for seed in range(1, 21):
        run = observe(name, seed, 180 if "changing" in name else 90)
        rights += [phase.right for phase in run.phases if phase.right is not None]
        free = observe(name, seed, 180 if "changing" in name else 90, law=None)
        if "wait" not in name:  # a quota does not shorten waits until it is small
            assert run.innocent_work > 0.9 * free.innocent_work
    assert rights
    assert sum(rights) >= 0.95 * len(rights)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["harmless", "ordinary"])
def test_without_a_culprit_no_job_is_limited_in_forty_runs(name: str) -> None:
    for seed in range(1, 41):
        assert observe(name, seed, 120).limited == 0
