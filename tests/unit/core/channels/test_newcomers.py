# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is taken for the want of a workload that comes in a squeeze."""

from collections.abc import Mapping

import pytest

from controller.core.channels.quota_grants import Newcomers
from controller.core.model import CgroupId
from controller.core.units import NS_PER_SEC

OLD, NEW, LATE = (CgroupId("cpu", number) for number in (1, 2, 3))
FLOOR = 0.1


class Stepper:
    """Newcomers beside one old workload that wants a CPU."""

    def __init__(self) -> None:
        self.newcomers = Newcomers()
        self.now_ns = 0
        self.present: tuple[CgroupId, ...] = (OLD,)
        self.divided: dict[CgroupId, float] = {OLD: 1.0}
        self.step(squeezed=False)

    def step(
        self,
        use: Mapping[CgroupId, float] | None = None,
        blocked: frozenset[CgroupId] = frozenset(),
        *,
        squeezed: bool = True,
    ) -> tuple[tuple[CgroupId, ...], Mapping[CgroupId, float]]:
        new = self.newcomers
        self.now_ns += NS_PER_SEC
        new.update(
            *(self.present, blocked, self.divided, use or {}, FLOOR, self.now_ns),
            squeezed=squeezed,
        )
        return tuple(new.waiting), new.wants


@pytest.fixture
def stepper() -> Stepper:
    return Stepper()


def test_a_newcomer_waits_until_it_uses_much_of_the_floor(stepper: Stepper) -> None:
    assert stepper.step() == ((), {})
    stepper.present = (OLD, NEW)
    for used in (0.0, 0.04):
        assert stepper.step({NEW: used}) == ((NEW,), {})
    assert stepper.step({NEW: 0.06}) == ((), {NEW: 1.0})
    # It wants that until the squeeze is divided again, whatever it uses.
    assert stepper.step({NEW: 0.06}) == ((), {NEW: 1.0})
    stepper.divided[NEW] = 1.0
    assert stepper.step({NEW: 0.0}) == ((), {})
    del stepper.divided[NEW]
    assert stepper.step({NEW: 0.0}) == ((), {})


def test_what_was_there_before_the_squeeze_is_no_newcomer(stepper: Stepper) -> None:
    stepper.present = (OLD, NEW)
    assert stepper.step(squeezed=False) == ((), {})
    assert stepper.step() == ((), {})


def test_after_the_squeeze_nobody_is_a_newcomer(stepper: Stepper) -> None:
    stepper.present = (OLD, NEW)
    assert stepper.step() == ((NEW,), {})
    assert stepper.step(squeezed=False) == ((), {})
    stepper.present = (OLD, NEW, LATE)
    assert stepper.step() == ((LATE,), {})


def test_one_that_left_is_forgotten(stepper: Stepper) -> None:
    stepper.present = (OLD, NEW, LATE)
    assert stepper.step() == ((NEW, LATE), {})
    stepper.present = (OLD, LATE)
    assert stepper.step() == ((LATE,), {})


def test_beside_nobody_that_wants_anything_a_newcomer_wants_the_floor(stepper: Stepper) -> None:
    stepper.divided = {}
    stepper.present = (OLD, NEW)
    assert stepper.step({NEW: 0.06}) == ((), {NEW: FLOOR})


def test_those_that_hardly_want_anything_do_not_lower_the_mean(stepper: Stepper) -> None:
    stepper.divided |= {CgroupId("cpu", number): 0.001 for number in range(10, 60)}
    stepper.present = (OLD, NEW)
    assert stepper.step({NEW: 0.06}) == ((), {NEW: 1.0})


def test_one_that_uses_little_for_some_seconds_is_measured_like_all_others(
    stepper: Stepper,
) -> None:
    stepper.present = (OLD, NEW, LATE)
    for _ in range(5):
        assert stepper.step({NEW: 0.02}) == ((NEW, LATE), {})
    # One that still sleeps needs its quota before it runs.
    assert stepper.step({NEW: 0.02}) == ((LATE,), {})


def test_the_use_of_one_that_cannot_be_limited_is_its_want(stepper: Stepper) -> None:
    stepper.present = (OLD, NEW)
    assert stepper.step({NEW: 0.06}, frozenset({NEW})) == ((), {NEW: 0.06})


def test_for_some_seconds_a_newcomer_counts_as_the_worst(stepper: Stepper) -> None:
    harm = {OLD: 0.5, NEW: 0.02}
    assert stepper.newcomers.without_evidence(harm) == harm
    stepper.present = (OLD, NEW)
    stepper.step()
    stepper.step({NEW: 0.06})
    stepper.divided[NEW] = 1.0
    for _ in range(4):
        stepper.step()
        assert stepper.newcomers.without_evidence(harm) == {OLD: 0.5, NEW: 0.5}
    stepper.step()
    assert stepper.newcomers.without_evidence(harm) == harm


def test_after_a_squeeze_evidence_counts_at_once(stepper: Stepper) -> None:
    harm = {OLD: 0.5, NEW: 0.02}
    stepper.present = (OLD, NEW)
    stepper.step()
    stepper.step({NEW: 0.06})
    stepper.step(squeezed=False)
    assert stepper.newcomers.without_evidence(harm) == harm
