# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The executor: carries out the actions of a plan and undoes them.

All writes of knobs pass through this module. It implements the rules that hold for every knob:
read, compare, journal, write, read back. A knob is written only if it has the value that the
executor wrote last or, for a knob that is not held, the value that the planner decided from.
Any other value is foreign: it stays, it becomes the new original, and the outcome reports it. Parts
of it that are as this program wrote them keep their own originals.

Only the control thread changes journal and kernel.
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
from actuators.ordering import Backoff, group_actions, is_passing, order_actions
from actuators.reading import SupportCache, read_knobs
from controller.core.decision import Action, Failure, Outcome
from controller.core.knob_values import write_text
from controller.core.model import STRUCTURAL_KNOBS, CgroupId, Knob, KnobReading, KnobValue, Target
from controller.host.state_dir import JOURNAL

__all__ = ("Executor", "restore_leftovers")

_log = logging.getLogger(__name__)

# On v1 a removed cgroup counts against the quota of its parent until the kernel has freed it:
# 15 ms on an idle 6.18. A restore therefore tries again for a second.
_RESTORE_RETRY_S = 1.0
_RESTORE_RETRY_STEP_S = 0.02


class Executor:
    """Executes actions and restores original values.

    :param journal: its loaded records are those of an earlier run; the caller restores them
        before executing the first action.
    :param actuators: one per knob.
    :param trace: see ``base.Trace``.
    """

    def __init__(
        self, journal: Journal, actuators: Iterable[Actuator], trace: Trace = no_trace
    ) -> None:
        self._journal = journal
        self._actuators = {actuator.knob: actuator for actuator in actuators}
        self._held = HeldKnobs(journal, self._actuators)
        self._trace = trace
        self._backoff = Backoff()
        self._support = SupportCache(self._actuators)

    def read(
        self, targets: Iterable[Target], knobs: Container[Knob] = frozenset(Knob)
    ) -> tuple[KnobReading, ...]:
        """Return the present values of *knobs* of *targets*.

        Knobs that are gone, refused, not supported by this host, or of which the journal has a
        damaged or newer record are left out. A held knob with a foreign value belongs to the other
        program from then on: this reading has no original. Later ones have, if a part is ours.
        """
        readings = []
        wanted = [actuator for knob, actuator in self._actuators.items() if knob in knobs]
        for target in targets:
            concerned = (
                a
                for a in wanted
                if a.applies_to(target)
                and self._support.has(a.knob)
                and not self._journal.is_kept(target, a.knob)
            )
            for knob, found in read_knobs(concerned, target):
                if isinstance(found, GoneError):
                    self._forget(target, knob)
                elif isinstance(found, RefusedError):
                    _log.debug("%s", found)
                else:
                    is_foreign = self._held.disown_foreign(target, knob, found)
                    original = self._held.recorded_original(target, knob)
                    original = None if is_foreign else original
                    readings.append(KnobReading(target, knob, found, original))
        return tuple(readings)

    @property
    def overwritten(self) -> Mapping[Knob, int]:
        """How often another program replaced a value of ours, by knob, since the start."""
        return dict(self._held.overwritten)

    @property
    def routine(self) -> Mapping[Knob, int]:
        """How often a routine of kubelet or systemd undid a value of ours, by knob."""
        return dict(self._held.routine)

    def held(self) -> tuple[Target, ...]:
        """Return the targets with at least one held knob."""
        return tuple(dict.fromkeys(record.target for record in self._held.records()))

    def execute(self, actions: Sequence[Action], *, now_ns: int) -> tuple[Outcome, ...]:
        """Execute the actions of one tick and return their outcomes in the same order.

        An outcome names the original of a knob that is held after the action. Actions that the
        kernel checks against each other succeed or fail together.

        :param now_ns: CLOCK_MONOTONIC; a refused knob is not written again before its
            back-off has ended.
        :raises OSError: the kernel failed in a way that is neither *gone* nor *refused*.
        :raises KeyError: there is no actuator for the knob of an action.
        """
        if any(action.knob in STRUCTURAL_KNOBS for action in actions):
            self._support.reset()
        outcomes: dict[int, Outcome] = {}
        for members in group_actions(order_actions(actions, self._actuators), self._actuators):
            for outcome in self._execute_group(members, now_ns):
                outcomes[id(outcome.action)] = outcome
        return tuple(self._with_original(outcomes[id(action)]) for action in actions)

    def holds(self, cgroup: CgroupId, knob: Knob) -> bool:
        """Return whether *knob* of *cgroup* is held."""
        records = self._held.records()
        return any(each.target[1:3] == cgroup and each.knob is knob for each in records)

    def holds_any(self, knobs: Container[Knob]) -> bool:
        """Return whether one of *knobs* is held of any target."""
        return any(record.knob in knobs for record in self._held.records())

    def restore_all(self, knobs: Container[Knob] = frozenset(Knob)) -> RestoreReport:
        """Restore the original values of all *knobs* in the journal. Idempotent.

        A knob with a foreign value is left unchanged, but for the parts of it that are ours. The
        record of a target that no longer exists is dropped. A failed restore is repeated for up to
        a second and then reported; its record stays. A failure does not prevent the restore of
        other knobs. A journal that cannot be written prevents no restore: the present records cover
        the way back.
        """
        self._support.reset()
        deadline = time.monotonic() + _RESTORE_RETRY_S
        results = self._restore_once(knobs)
        while _any_failed(results) and time.monotonic() < deadline:
            time.sleep(_RESTORE_RETRY_STEP_S)
            results |= self._restore_once(knobs)
        unknown = [
            RestoreResult(subject=str(path), result=Restored.UNKNOWN, message=reason)
            for path, reason in self._journal.kept.items()
        ]
        return RestoreReport(results=(*unknown, *results.values()))

    def _restore_once(self, knobs: Container[Knob]) -> dict[tuple[Target, Knob], RestoreResult]:
        results: dict[tuple[Target, Knob], RestoreResult] = {}
        pending: list[Action] = []
        for record in self._held.records():
            if record.knob not in knobs:
                continue
            try:
                step = self._first_restore_step(record)
            except Exception as error:  # whatever it is, the other knobs are restored
                step = _result(record, Restored.FAILED, _reason(error))
            if isinstance(step, Action):
                pending.append(step)
            else:
                results[record.target, record.knob] = step
        for action in order_actions(pending, self._actuators):
            held = self._held.get(action.target, action.knob)
            assert held is not None
            try:
                result = self._restore(action, held)
            except Exception as error:  # as above
                result = _result(held, Restored.FAILED, _reason(error))
            results[action.target, action.knob] = result
        return results

    def _execute_group(self, actions: Sequence[Action], now_ns: int) -> list[Outcome]:
        # All members are checked before the first one is written. Otherwise a member in back-off
        # would cause the others to be written and reverted in every tick.
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
            outcome = self._count(self._write(action, current), now_ns)
            if outcome.failure is Failure.REFUSED:
                obstacle = outcome
            if outcome.failure is Failure.REFUSED or outcome.foreign is not None:
                outcomes.append(outcome)
            else:
                written.append((outcome, current))
        if obstacle is None:
            return outcomes + [outcome for outcome, _ in written]
        return outcomes + [self._revert(o, was, obstacle) for o, was in reversed(written)]

    def _check(self, action: Action, now_ns: int) -> Outcome | KnobValue:
        # Returns the present value if the knob may be written, otherwise the action's outcome.
        key = action.target, action.knob
        try:
            current = self._actuators[action.knob].read(action.target)
        except GoneError as error:
            self._forget(*key)
            return gone(action, error)
        except RefusedError as error:
            return self._count(refused(action, None, error.errno, str(error)), now_ns)
        if self._held.disown_foreign(*key, current) or not self._expected(action, current):
            return _foreign(action, current)
        refusal = self._backoff.waiting(*key, now_ns)
        if refusal is not None:
            outcome = refused(action, current, refusal.errno, refusal.message)
            return replace(outcome, retry_ns=refusal.retry_at_ns)
        return current

    def _write(self, action: Action, current: KnobValue) -> Outcome:
        # Writes. After a refusal at an intermediate value the knob is set back to *current*.
        outcome = self._write_once(action, current)
        found = outcome.applied
        if outcome.failure is Failure.REFUSED and found is not None and found != current:
            reverted = self._write_once(replace(action, value=current), found)
            return replace(outcome, applied=reverted.applied)
        return outcome

    def _write_once(self, action: Action, current: KnobValue) -> Outcome:
        key = action.target, action.knob
        held = self._held.get(*key)
        original = current if held is None else held.original
        record = Record(*key, original=original, previous=current, intended=action.value)
        try:
            if action.value != current:
                self._held.begin(record)
        except JournalError as error:
            if held is None or action.value != original:
                return refused(action, current, error.errno, str(error))
            # The record on disk has the original value, so a restore needs no new one.
            _log.debug("%s", error)
        actuator = self._actuators[action.knob]
        try:
            found = actuator.read(action.target)
            if self._is_foreign(record, held, current, found):
                return _foreign(action, found)
            self._held.unsettle(*key)
            outcome = actuator.apply(replace(action, previous=current), self._trace)
        except GoneError as error:
            self._forget(*key)
            return gone(action, error)
        except RefusedError as error:  # not even the value after a refusal could be read
            return refused(action, None, error.errno, str(error))
        applied = outcome.applied
        if outcome.failure is Failure.GONE:
            self._forget(*key)
        elif applied is not None:
            try:
                self._held.finish(record, applied, refused=outcome.failure is not None)
            except JournalError as error:
                return refused(action, applied, error.errno, str(error))
        return replace(outcome, action=action)

    def _is_foreign(
        self, record: Record, held: Record | None, current: KnobValue, found: KnobValue
    ) -> bool:
        """Return whether another program wrote *found* after *current* was read.

        The record is stored between both, and this process may wait for a CPU. A write of runc in
        that time, of a limit of a new container, would be lost, and not come back at the end.
        """
        if self._actuators[record.knob].matches(current, found):
            return False
        if held is None:
            self._held.release(record.target, record.knob)
            return True
        return self._held.disown_foreign(record.target, record.knob, found)

    def _revert(self, outcome: Outcome, before: KnobValue, obstacle: Outcome) -> Outcome:
        # Undoes a write because another member of its group was refused.
        action, applied = outcome.action, outcome.applied
        if applied is None:
            return outcome
        reverted = self._write(replace(action, value=before), applied)
        return _refused_with(action, reverted.applied, obstacle)

    def _expected(self, action: Action, current: KnobValue) -> bool:
        # A knob that is not held must still have the value from which the planner decided.
        if self._held.get(action.target, action.knob) is not None:
            return True
        return self._actuators[action.knob].matches(action.previous, current)

    def _count(self, outcome: Outcome, now_ns: int) -> Outcome:
        # Starts or ends the back-off of a knob; a refused outcome gets the time of the next try.
        key = outcome.action.target, outcome.action.knob
        if outcome.failure is not Failure.REFUSED:
            self._backoff.clear(*key)
            return outcome
        code = outcome.errno or errno.EIO
        refusal = self._backoff.refused(*key, now_ns, code, outcome.message)
        if refusal.times == 1 and not is_passing(outcome.action.knob, code):
            _log.warning("%s", outcome.message)
        return replace(outcome, retry_ns=refusal.retry_at_ns)

    def _with_original(self, outcome: Outcome) -> Outcome:
        action = outcome.action
        original = self._held.recorded_original(action.target, action.knob)
        return outcome if original is None else replace(outcome, original=original)

    def _first_restore_step(self, record: Record) -> Action | RestoreResult:
        # Returns the write that restores a record, or the result if there is nothing to write.
        actuator = self._actuators.get(record.knob)
        if actuator is None:
            return _result(record, Restored.UNKNOWN, "no actuator for this knob on this host")
        try:
            current = actuator.read(record.target)
        except GoneError as error:
            self._forget(record.target, record.knob)
            return _result(record, Restored.GONE, str(error))
        if current == record.original or not self._held.is_ours(record, current):
            if actuator.matches(record.original, current):
                self._held.release(record.target, record.knob)
                return _result(record, Restored.ALREADY, f"is '{current}', the original value")
            self._held.take_over(record, current)
        held = self._held.get(record.target, record.knob)
        if held is None:
            return _result(record, Restored.FOREIGN, _left(current))
        return Action(
            target=record.target,
            knob=record.knob,
            previous=current,
            value=held.original,
            reason="restore",
        )

    def _restore(self, action: Action, record: Record) -> RestoreResult:
        outcome = self._write(action, action.previous)
        if outcome.failure is Failure.GONE:
            return _result(record, Restored.GONE, outcome.message)
        if outcome.foreign is not None:
            left = self._held.get(record.target, record.knob)
            # A part of it is ours, which the next try restores.
            result = Restored.FOREIGN if left is None else Restored.FAILED
            return _result(record, result, _left(outcome.foreign))
        applied = outcome.applied
        matches = self._actuators[record.knob].matches
        if outcome.failure is not None or applied is None or not matches(record.original, applied):
            message = outcome.message or f"is '{applied}', wanted '{record.original}'"
            return _result(record, Restored.FAILED, message)
        self._forget(record.target, record.knob)
        message = f"'{action.previous}' back to '{record.original}'"
        return _result(record, Restored.RESTORED, message)

    def _forget(self, target: Target, knob: Knob) -> None:
        self._held.release(target, knob)
        self._backoff.clear(target, knob)


def restore_leftovers(state_dir: Path, actuators: Iterable[Actuator]) -> RestoreReport:
    """Restore the knobs that an earlier run left changed, from the journal below *state_dir*.

    :raises JournalError: the journal directory cannot be used.
    """
    return Executor(Journal(state_dir / JOURNAL), actuators).restore_all()


def _foreign(action: Action, found: KnobValue) -> Outcome:
    message = f"another program set {write_text(action.knob, action.target.path, found)}"
    return Outcome(action=action, applied=found, foreign=found, message=message)


def _refused_with(action: Action, applied: KnobValue | None, obstacle: Outcome) -> Outcome:
    message = f"{action.target.path}: {action.knob} left at '{applied}' because {obstacle.message}"
    outcome = refused(action, applied, obstacle.errno, message)
    return replace(outcome, retry_ns=obstacle.retry_ns)


def _any_failed(results: Mapping[tuple[Target, Knob], RestoreResult]) -> bool:
    return any(result.result is Restored.FAILED for result in results.values())


def _reason(error: Exception) -> str:
    known = isinstance(error, RefusedError | JournalError | OSError | ValueError)
    return str(error) if known else f"{type(error).__name__}: {error}"


def _left(found: KnobValue) -> str:
    return f"is '{found}', set by another program: left unchanged"


def _result(record: Record, result: Restored, message: str) -> RestoreResult:
    return RestoreResult(
        subject=f"{record.target.path or record.target.scope} {record.knob}",
        result=result,
        message=message,
    )
