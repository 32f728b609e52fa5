# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whose value a knob has, when the news comes with an outcome instead of a reading."""

from controller.core.control.knob_state import KnobBook
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobReading, KnobValue, Target, TargetKind

TARGET = Target(TargetKind.CGROUP, "cpu", 7, "/batch")
FREE, OURS, THEIRS = map(KnobValue, ("max 100000 0", "20000 10000 0", "60000 100000 0"))


def request(book: KnobBook, value: KnobValue) -> Action | None:
    action = book.request("cpu", 7, Knob.CPU_QUOTA, value, "test", 0)
    book.commit(() if action is None else (action,))
    return action


def test_a_foreign_value_found_by_a_write_is_the_new_original() -> None:
    book = KnobBook()
    book.learn((KnobReading(TARGET, Knob.CPU_QUOTA, FREE),), (), True, 0)
    action = request(book, OURS)
    assert action is not None
    outcome = Outcome(action=action, applied=THEIRS, foreign=THEIRS)
    book.learn((KnobReading(TARGET, Knob.CPU_QUOTA, THEIRS),), (outcome,), True, 1)
    assert book.original("cpu", 7, Knob.CPU_QUOTA) == THEIRS
    # What is theirs is not put back to what was there before them.
    assert book.restore("cpu", 7, Knob.CPU_QUOTA, "test", 2) is None
    assert book.held() == []
