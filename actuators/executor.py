# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The only way from a plan to the kernel: journal, compare, write, read back.

What holds for every knob lives here. Before a write the knob is read, and it is only written
if it has the value that we left there, or that the planner saw. Anything else is somebody
else's value: it stays, it becomes the new original, and the outcome says so.

Journal and kernel are changed by the control thread alone.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
import errno
import logging
from pathlib import Path
import time

from actuators.base import (
    Actuator,
    GoneError,
    RefusedError,
    Restored,
    RestoreReport,
    RestoreResult,
    Trace,
    gone,
    no_trace,
    refused,
)
from actuators.held_knobs import HeldKnobs
from actuators.journal import Journal, JournalError, Record
from actuators.ordering import Backoff, group_actions, order_actions
from actuators.reading import Support, read_knobs
from controller.core.decision import Action, Failure, Outcome
from controller.core.model import STRUCTURAL_KNOBS, CgroupId, Knob, KnobReading, KnobValue, Target

__all__ = ("Executor", "restore_leftovers")

_log = logging.getLogger(__name__)

# A removed cgroup counts against the quota of its v1 parent until the kernel has freed it:
# 15 ms on an idle 6.18.
_RESTORE_RETRY_S = 1.0
_RESTORE_RETRY_STEP_S = 0.02


class Executor:
    """Executes actions and undoes them.

    :param journal: records that it has loaded are those of an earlier run; restore them
        before anything else.
    :param actuators: one per knob.
    :param trace: see ``base.Trace``.
    """

    def __init__(
        self, journal: Journal, actuators: Iterable[Actuator], trace: Trace = no_trace
    ) -> None:
        self._journal = journal
        self._actuators = {actuator.knob: actuator for actuator in actuators}
        self._holdings = HeldKnobs(journal, self._actuators)
        self._trace = trace
        self._backoff = Backoff()
        self._support = Support(self._actuators)

    def read(
        self, targets: Iterable[Target], knobs: Container[Knob] = frozenset(Knob)
    ) -> tuple[KnobReading, ...]:
        """Return *knobs* of *targets* as they are now; what is gone or refused is left out.

        So is what this host does not support. A knob that we hold and somebody else changed is
        theirs from now on.
        """
        readings = []
        wanted = [actuator for knob, actuator in self._actuators.items() if knob in knobs]
        for target in targets:
            concerned = (a for a in wanted if a.applies_to(target) and self._support.has(a.knob))
            for knob, found in read_knobs(concerned, target):
                if isinstance(found, GoneError):
                    self._forget(target, knob)
                elif isinstance(found, RefusedError):
                    _log.debug("%s", found)
                else:
                    self._holdings.disown_foreign(target, knob, found)
                    readings.append(KnobReading(target, knob, found))
        return tuple(readings)

    @property
    def overwritten(self) -> Mapping[Knob, int]:
        """How often somebody else replaced a value of ours, by knob, since the start."""
        return dict(self._holdings.overwritten)

    def held(self) -> tuple[Target, ...]:
        """Return the targets of which at least one knob is not as others left it."""
        return tuple(dict.fromkeys(record.target for record in self._holdings.records()))

    def execute(self, actions: Sequence[Action], *, now_ns: int) -> tuple[Outcome, ...]:
        """Execute the actions of one tick and return one outcome for each, in their order.

        Actions that the kernel checks against each other succeed or fail together.

        :param now_ns: CLOCK_MONOTONIC; a refused knob is not written again before its
            back-off is over.
        :raises OSError: the kernel failed in a way that is neither *gone* nor *refused*.
        :raises JournalError: a record could not be removed.
        :raises KeyError: an action for a knob without actuator.
        """
        if any(action.knob in STRUCTURAL_KNOBS for action in actions):
            self._support.reset()
        outcomes: dict[int, Outcome] = {}
        for members in group_actions(order_actions(actions, self._actuators), self._actuators):
            for outcome in self._execute_group(members, now_ns):
                outcomes[id(outcome.action)] = outcome
        return tuple(outcomes[id(action)] for action in actions)

    def holds(self, cgroup: CgroupId, knob: Knob) -> bool:
        """Return whether *knob* of *cgroup* is not as others left it."""
        records = self._holdings.records()
        return any(each.target[1:3] == cgroup and each.knob is knob for each in records)

    def restore_all(self, knobs: Container[Knob] = frozenset(Knob)) -> RestoreReport:
        """Bring every one of *knobs* in the journal back to its original value. Idempotent.

        A knob that somebody else changed is left alone, a vanished target is forgotten, and
        what fails is tried again for up to a second, then reported; its record stays. No
        failure stops the others.
        """
        self._support.reset()
        deadline = time.monotonic() + _RESTORE_RETRY_S
        results = self._restore_once(knobs)
        while _any_failed(results) and time.monotonic() < deadline:
            time.sleep(_RESTORE_RETRY_STEP_S)
            results |= self._restore_once(knobs)
        newer = "written by a newer version: use that version's 'sweetpoint release'"
        unknown = [
            RestoreResult(subject=path, result=Restored.UNKNOWN, message=newer)
            for path in self._journal.unknown
        ]
        return RestoreReport(
            results=(*unknown, *results.values()), unreadable=tuple(self._journal.unreadable)
        )

    def _restore_once(self, knobs: Container[Knob]) -> dict[tuple[Target, Knob], RestoreResult]:
        results: dict[tuple[Target, Knob], RestoreResult] = {}
        pending: list[Action] = []
        for record in self._holdings.records():
            if record.knob not in knobs:
                continue
            try:
                step = self._first_restore_step(record)
            except (RefusedError, JournalError, OSError, ValueError) as error:
                step = _result(record, Restored.FAILED, str(error))
            if isinstance(step, Action):
                pending.append(step)
            else:
                results[record.target, record.knob] = step
        for action in order_actions(pending, self._actuators):
            held = self._holdings.get(action.target, action.knob)
            assert held is not None
            try:
                result = self._restore(action, held)
            except (JournalError, OSError, ValueError) as error:
                result = _result(held, Restored.FAILED, str(error))
            results[action.target, action.knob] = result
        return results

    def _execute_group(self, actions: Sequence[Action], now_ns: int) -> list[Outcome]:
        # First look at all of them, then write: a member that has to wait keeps the others
        # from being written and taken back again in every tick.
        checked = [(action, self._check(action, now_ns)) for action in actions]
        outcomes = [found for _, found in checked if isinstance(found, Outcome)]
        obstacle = next((o for o in outcomes if o.failure is Failure.REFUSED), None)
        written: list[tuple[Outcome, KnobValue]] = []
        for action, current in checked:
            if isinstance(current, Outcome):
                continue
            if obstacle is not None:
                outcomes.append(_refused_with(action, current, obstacle))
                continue
            outcome = self._write(action, current)
            self._count(outcome, now_ns)
            if outcome.failure is Failure.REFUSED:
                obstacle = outcome
                outcomes.append(outcome)
            else:
                written.append((outcome, current))
        if obstacle is None:
            return outcomes + [outcome for outcome, _ in written]
        return outcomes + [self._take_back(o, was, obstacle) for o, was in reversed(written)]

    def _check(self, action: Action, now_ns: int) -> Outcome | KnobValue:
        # The knob's value if it may be written now, otherwise what became of the action.
        key = action.target, action.knob
        try:
            current = self._actuators[action.knob].read(action.target)
        except GoneError as error:
            self._forget(*key)
            return gone(action, error)
        except RefusedError as error:
            outcome = refused(action, None, error.errno, str(error))
            self._count(outcome, now_ns)
            return outcome
        if self._holdings.disown_foreign(*key, current) or not self._expected(action, current):
            message = f"{action.target.path}: somebody set {action.knob} to '{current}'"
            return Outcome(action=action, applied=current, foreign=current, message=message)
        refusal = self._backoff.waiting(*key, now_ns)
        if refusal is not None:
            return refused(action, current, refusal.errno, refusal.message)
        return current

    def _write(self, action: Action, current: KnobValue) -> Outcome:
        # Write, and bring a knob that stopped half way back to *current*.
        outcome = self._write_once(action, current)
        half_way = outcome.applied
        if outcome.failure is Failure.REFUSED and half_way is not None and half_way != current:
            back = self._write_once(replace(action, value=current), half_way)
            return replace(outcome, applied=back.applied)
        return outcome

    def _write_once(self, action: Action, current: KnobValue) -> Outcome:
        key = action.target, action.knob
        original = self._holdings.original(*key, current)
        record = Record(*key, original=original, previous=current, intended=action.value)
        try:
            if action.value != current:
                self._holdings.begin(record)
        except JournalError as error:
            return refused(action, current, error.errno, str(error))
        actuator = self._actuators[action.knob]
        outcome = actuator.apply(replace(action, previous=current), self._trace)
        applied = outcome.applied
        if outcome.failure is Failure.GONE:
            self._forget(*key)
        elif applied is not None:
            self._holdings.finish(record, applied, refused=outcome.failure is not None)
        return replace(outcome, action=action)

    def _take_back(self, outcome: Outcome, before: KnobValue, obstacle: Outcome) -> Outcome:
        # Undo a write because another member of its group was refused.
        action, applied = outcome.action, outcome.applied
        if applied is None:
            return outcome
        back = self._write(replace(action, value=before), applied)
        return _refused_with(action, back.applied, obstacle)

    def _expected(self, action: Action, current: KnobValue) -> bool:
        # A knob that we do not hold must still have the value from which the planner decided.
        if self._holdings.get(action.target, action.knob) is not None:
            return True
        return self._actuators[action.knob].matches(action.previous, current)

    def _count(self, outcome: Outcome, now_ns: int) -> None:
        key = outcome.action.target, outcome.action.knob
        if outcome.failure is not Failure.REFUSED:
            self._backoff.clear(*key)
            return
        code = outcome.errno or errno.EIO
        if self._backoff.refused(*key, now_ns, code, outcome.message) == 1:
            _log.warning("%s", outcome.message)

    def _first_restore_step(self, record: Record) -> Action | RestoreResult:
        # What is to be written for a record, or what became of it if nothing is.
        actuator = self._actuators.get(record.knob)
        if actuator is None:
            return _result(record, Restored.UNKNOWN, "this host has no actuator for it")
        try:
            current = actuator.read(record.target)
        except GoneError as error:
            self._forget(record.target, record.knob)
            return _result(record, Restored.GONE, str(error))
        if current != record.original and self._holdings.is_ours(record, current):
            return Action(
                target=record.target,
                knob=record.knob,
                previous=current,
                value=record.original,
                reason="restore",
            )
        self._holdings.release(record.target, record.knob)
        if actuator.matches(record.original, current):
            return _result(record, Restored.ALREADY, f"is '{current}' as it was")
        message = f"is '{current}', set by somebody else: left alone"
        return _result(record, Restored.FOREIGN, message)

    def _restore(self, action: Action, record: Record) -> RestoreResult:
        outcome = self._write(action, action.previous)
        if outcome.failure is Failure.GONE:
            return _result(record, Restored.GONE, outcome.message)
        applied = outcome.applied
        same = self._actuators[record.knob].matches
        if outcome.failure is not None or applied is None or not same(record.original, applied):
            message = outcome.message or f"is '{applied}', wanted '{record.original}'"
            return _result(record, Restored.FAILED, message)
        self._forget(record.target, record.knob)
        message = f"'{action.previous}' back to '{record.original}'"
        return _result(record, Restored.RESTORED, message)

    def _forget(self, target: Target, knob: Knob) -> None:
        self._holdings.release(target, knob)
        self._backoff.clear(target, knob)


def restore_leftovers(state_dir: Path, actuators: Iterable[Actuator]) -> RestoreReport:
    """Restore whatever an earlier run left behind, from the journal below *state_dir*.

    :raises JournalError: the journal directory cannot be used.
    """
    return Executor(Journal(state_dir / "journal"), actuators).restore_all()


def _refused_with(action: Action, applied: KnobValue | None, obstacle: Outcome) -> Outcome:
    message = f"{action.target.path}: {action.knob} left at '{applied}' because {obstacle.message}"
    return refused(action, applied, obstacle.errno, message)


def _any_failed(results: Mapping[tuple[Target, Knob], RestoreResult]) -> bool:
    return any(result.result is Restored.FAILED for result in results.values())


def _result(record: Record, result: Restored, message: str) -> RestoreResult:
    return RestoreResult(
        subject=f"{record.target.path or record.target.scope} {record.knob}",
        result=result,
        message=message,
    )
