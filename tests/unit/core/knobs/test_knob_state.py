# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Owner and value of a knob, derived from readings and outcomes."""

from typing import Any

import pytest

from controller.core.decision import Action, Failure, Outcome
from controller.core.in_force import HeldKnob
from controller.core.knobs.knob_state import KnobState
from controller.core.model import Knob, KnobReading, KnobValue, Target, TargetKind
from controller.core.workload_index import WorkloadIndex

TARGET = Target(TargetKind.CGROUP, "cpu", 7, "/batch")
FREE, OURS, THEIRS = map(KnobValue, ("max 100000 0", "20000 10000 0", "60000 100000 0"))
STRICTER = KnobValue("10000 10000 0")
_S = 1_000_000_000


def reading(value: KnobValue, original: KnobValue | None = None) -> tuple[KnobReading, ...]:
    return (KnobReading(TARGET, Knob.CPU_QUOTA, value, original),)


def request(knobs: KnobState, value: KnobValue, now_ns: int = 0) -> Action | None:
    action = knobs.request("cpu", 7, Knob.CPU_QUOTA, value, "test", now_ns)
    knobs.commit(() if action is None else (action,))
    return action


def restore(knobs: KnobState) -> Action | None:
    action = knobs.restore("cpu", 7, Knob.CPU_QUOTA, "test", 0)
    knobs.commit(() if action is None else (action,))
    return action


def squeezed() -> KnobState:
    """Return a state in which OURS was written over FREE."""
    knobs = KnobState()
    knobs.update(reading(FREE), (), True, 0)
    action = request(knobs, OURS)
    assert action is not None
    done = Outcome(action=action, applied=OURS, original=FREE)
    knobs.update(reading(OURS, FREE), (done,), True, 1)
    assert knobs.held() == [(TARGET, Knob.CPU_QUOTA)]
    return knobs


def test_a_foreign_value_found_by_a_write_is_the_new_original() -> None:
    knobs = KnobState()
    knobs.update(reading(FREE), (), True, 0)
    action = request(knobs, OURS)
    assert action is not None
    outcome = Outcome(action=action, applied=THEIRS, foreign=THEIRS)
    knobs.update(reading(THEIRS), (outcome,), True, 1)
    assert knobs.original("cpu", 7, Knob.CPU_QUOTA) == THEIRS
    # A foreign value is not replaced by the value before it.
    assert knobs.restore("cpu", 7, Knob.CPU_QUOTA, "test", 2) is None
    assert knobs.held() == []


def test_after_a_restore_the_same_value_is_foreign() -> None:
    knobs = squeezed()
    action = restore(knobs)
    assert action is not None and action.value == FREE
    knobs.update(reading(FREE), (Outcome(action=action, applied=FREE),), True, 2)
    # An administrator sets the value that was ours a moment ago.
    knobs.update(reading(OURS), (), True, 3)
    assert knobs.held() == []
    assert restore(knobs) is None
    assert knobs.original("cpu", 7, Knob.CPU_QUOTA) == OURS


def test_the_owner_is_the_executors_decision_alone() -> None:
    """The quota of an administrator has the ratio of ours, and is not held."""
    knobs = squeezed()
    same_ratio = KnobValue("200000 100000 0")
    knobs.update(reading(same_ratio), (), True, 2)
    assert knobs.held() == []
    assert restore(knobs) is None
    assert knobs.original("cpu", 7, Knob.CPU_QUOTA) == same_ratio


def test_a_held_value_that_the_kernel_doubled_is_restored() -> None:
    knobs = squeezed()
    knobs.update(reading(KnobValue("40000 20000 0"), FREE), (), True, 2)
    action = restore(knobs)
    assert action is not None and action.value == FREE


def test_a_target_that_comes_back_can_be_moved() -> None:
    knobs = squeezed()
    action = request(knobs, THEIRS)
    assert action is not None
    gone = Outcome(action=action, applied=None, failure=Failure.GONE)
    knobs.update((), (gone,), True, 2)
    assert not knobs.movable(Knob.CPU_QUOTA, 3)
    knobs.update(reading(FREE), (), True, 3)
    assert knobs.movable(Knob.CPU_QUOTA, 3) == [TARGET]
    assert request(knobs, OURS) is not None


def test_a_refused_knob_waits_for_the_executors_back_off() -> None:
    knobs = KnobState()
    knobs.update(reading(FREE), (), True, 0)
    action = request(knobs, OURS)
    assert action is not None
    refused = Outcome(
        action=action, applied=FREE, failure=Failure.REFUSED, errno=16, retry_ns=5 * _S
    )
    knobs.update(reading(FREE), (refused,), True, 1 * _S)
    assert request(knobs, OURS, 4 * _S) is None
    assert not knobs.held()
    knobs.update(reading(FREE), (), True, 5 * _S)
    assert not knobs.quiet
    assert request(knobs, OURS, 5 * _S) is not None


def test_a_knob_held_from_before_is_restored() -> None:
    knobs = KnobState()
    knobs.update(reading(OURS, FREE), (), True, 0)
    assert knobs.held() == [(TARGET, Knob.CPU_QUOTA)]
    action = restore(knobs)
    assert action is not None and action.value == FREE


def test_in_observe_mode_a_request_counts_as_written_until_the_reading_changes() -> None:
    knobs = KnobState()
    knobs.update(reading(FREE), (), False, 0)
    assert request(knobs, OURS) is not None
    knobs.update(reading(FREE), (), False, 1)
    assert request(knobs, OURS) is None
    knobs.update(reading(THEIRS), (), False, 2)
    assert knobs.value("cpu", 7, Knob.CPU_QUOTA) == THEIRS


PODS = "/kubepods/besteffort/pod1"


def times_applied(path: str, foreign: KnobValue, seconds: int) -> tuple[list[int], list[str]]:
    """Return when OURS is written if *foreign* replaces it every second, and what is reported."""
    target = TARGET._replace(path=path)
    knobs, written, told = KnobState(), [], []
    knobs.update((KnobReading(target, Knob.CPU_QUOTA, FREE, None),), (), True, 0)
    for second in range(seconds):
        action = request(knobs, OURS, second * _S)
        told += [each.text for each in knobs.reports]
        outcomes: tuple[Outcome, ...] = ()
        if action is not None:
            written.append(second)
            outcomes = (Outcome(action=action, applied=OURS, original=action.previous),)
            ours = KnobReading(target, Knob.CPU_QUOTA, OURS, action.previous)
            knobs.update((ours,), outcomes, True, second * _S)
        theirs = KnobReading(target, Knob.CPU_QUOTA, foreign, None)
        knobs.update((theirs,), (), True, second * _S + 1)
    return written, told


def test_a_routine_of_kubelet_or_systemd_is_answered_at_its_rhythm() -> None:
    for path in (PODS, "/kubepods.slice/kubepods-pod2.slice", "/batch.slice/job.service"):
        written, told = times_applied(path, FREE, 3600)
        assert written[:3] == [0, 1, 11] and len(written) == 361
        assert len(told) == 1 and "kubelet or systemd" in told[0]


def test_another_value_in_a_cgroup_of_kubelet_is_respected() -> None:
    for path, foreign in ((PODS, KnobValue("300000 100000 0")), ("/batch", FREE)):
        written, told = times_applied(path, foreign, 300)
        assert written == [0, 1, 2, 3]
        assert len(told) == 1 and "it is not written any more" in told[0]


def test_the_end_of_the_wait_for_a_routine_is_not_quiet() -> None:
    target = TARGET._replace(path=PODS)
    knobs = KnobState()
    knobs.update((KnobReading(target, Knob.CPU_QUOTA, FREE, None),), (), True, 0)
    for second in (0, 1):
        action = request(knobs, OURS, second * _S)
        assert action is not None
        done = Outcome(action=action, applied=OURS, original=FREE)
        knobs.update((KnobReading(target, Knob.CPU_QUOTA, OURS, FREE),), (done,), True, second * _S)
        free = (KnobReading(target, Knob.CPU_QUOTA, FREE, None),)
        knobs.update(free, (), True, second * _S + 1)
    assert request(knobs, OURS, 2 * _S) is None
    for second in (2, 3, 10):
        knobs.update(free, (), True, second * _S)
        assert knobs.quiet
    knobs.update(free, (), True, 11 * _S)
    assert not knobs.quiet
    assert request(knobs, OURS, 11 * _S) is not None


def test_the_number_of_vanished_knobs_that_are_kept_is_bounded() -> None:
    knobs = KnobState()
    now_ns = 0
    for first in range(0, 5000, 500):
        targets = [Target(TargetKind.CGROUP, "cpu", first + n, f"/b/{n}") for n in range(500)]
        readings = [KnobReading(target, Knob.CPU_QUOTA, FREE) for target in targets]
        knobs.update(tuple(readings), (), True, now_ns)
        requests = (
            knobs.request("cpu", target.id, Knob.CPU_QUOTA, OURS, "test", now_ns)
            for target in targets
        )
        actions = [action for action in requests if action is not None]
        assert len(actions) == 500
        knobs.commit(tuple(actions))
        done = [Outcome(action=action, applied=OURS, original=FREE) for action in actions]
        written = (KnobReading(target, Knob.CPU_QUOTA, OURS, FREE) for target in targets)
        knobs.update(tuple(written), done, True, now_ns + 1)
        now_ns += _S
    knobs.update((), (), True, now_ns)
    assert [each.id for each in knobs.touched(Knob.CPU_QUOTA)] == list(range(4000, 5000))


def record(knobs: KnobState) -> tuple[HeldKnob, ...]:
    return knobs.in_force(WorkloadIndex((), {})).knobs


def test_a_foreign_value_that_a_refused_write_found_is_not_held() -> None:
    knobs = KnobState()
    knobs.update(reading(FREE), (), True, _S)
    action = request(knobs, OURS)
    assert action is not None
    knobs.settle((Outcome(action=action, applied=THEIRS, failure=Failure.REFUSED, errno=16),))
    assert record(knobs) == ()
    assert knobs.original("cpu", TARGET.id, Knob.CPU_QUOTA) == THEIRS


def test_the_record_has_a_knob_from_its_outcome_on() -> None:
    knobs = KnobState()
    knobs.update(reading(FREE), (), True, _S)
    first = request(knobs, OURS)
    assert first is not None
    assert record(knobs) == ()
    knobs.settle((Outcome(action=first, applied=OURS, original=FREE),))
    (held,) = record(knobs)
    assert (held.value, held.original, held.reason) == (OURS, FREE, "test")
    assert (held.since_ns, held.changed_ns) == (_S, _S)
    knobs.update(reading(OURS, FREE), (), True, 2 * _S)
    second = request(knobs, STRICTER)
    assert second is not None
    knobs.settle((Outcome(action=second, applied=STRICTER, original=FREE),))
    (held,) = record(knobs)
    assert (held.value, held.since_ns, held.changed_ns) == (STRICTER, _S, 2 * _S)


@pytest.mark.parametrize(
    "outcome",
    [{"foreign": THEIRS, "applied": THEIRS}, {"failure": Failure.GONE}, {"applied": FREE}],
)
def test_a_knob_that_is_not_held_any_more_leaves_the_record_at_once(
    outcome: dict[str, Any],
) -> None:
    knobs = squeezed()
    action = request(knobs, STRICTER)
    assert action is not None and len(record(knobs)) == 1
    knobs.settle((Outcome(**{"action": action, "applied": None, **outcome}),))
    assert record(knobs) == ()


def test_a_refused_write_leaves_the_record_as_it_was() -> None:
    knobs = squeezed()
    before = record(knobs)
    action = request(knobs, STRICTER)
    assert action is not None
    refused = Outcome(action=action, applied=OURS, failure=Failure.REFUSED, original=FREE)
    knobs.settle((refused,))
    assert record(knobs) == before


def test_in_a_pause_of_everything_what_has_no_outcome_is_not_in_force() -> None:
    knobs = squeezed()
    knobs.commit((), released=True)
    knobs.settle(())
    assert record(knobs) == ()
