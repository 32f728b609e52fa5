# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The owner of a knob's value when a foreign value is reported by an outcome."""

from controller.core.control.knob_state import KnobState
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobReading, KnobValue, Target, TargetKind

TARGET = Target(TargetKind.CGROUP, "cpu", 7, "/batch")
FREE, OURS, FOREIGN = map(KnobValue, ("max 100000 0", "20000 10000 0", "60000 100000 0"))


def request(knobs: KnobState, value: KnobValue) -> Action | None:
    action = knobs.request("cpu", 7, Knob.CPU_QUOTA, value, "test", 0)
    knobs.commit(() if action is None else (action,))
    return action


def test_a_foreign_value_found_by_a_write_is_the_new_original() -> None:
    knobs = KnobState()
    knobs.update((KnobReading(TARGET, Knob.CPU_QUOTA, FREE),), (), True, 0)
    action = request(knobs, OURS)
    assert action is not None
    outcome = Outcome(action=action, applied=FOREIGN, foreign=FOREIGN)
    knobs.update((KnobReading(TARGET, Knob.CPU_QUOTA, FOREIGN),), (outcome,), True, 1)
    assert knobs.original("cpu", 7, Knob.CPU_QUOTA) == FOREIGN
    # The foreign value is not replaced by the original before it.
    assert knobs.restore("cpu", 7, Knob.CPU_QUOTA, "test", 2) is None
    assert knobs.held() == []
