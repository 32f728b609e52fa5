# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Held knobs: those with a value of ours, and the test of ownership of a value.

A knob is held from the first write until it has its original value again or another program
writes it. For a knob that this process wrote, a value is ours if it matches the value read back
after the write. After a write that an error broke off, and for a record of an earlier process,
which may have ended during the write, every intermediate value of the last write is ours, and every
intermediate value on the way from there to the original, because a restore goes on without a record
of its own where the journal cannot be written.
"""

from collections import Counter
from collections.abc import Mapping
import logging

from actuators.base import Actuator
from actuators.journal import Journal, Record
from controller.core.knob_comparison import is_routine
from controller.core.model import Knob, KnobValue, Target

__all__ = ("HeldKnobs",)

_log = logging.getLogger(__name__)
# Most first values that are kept: a tenant may make and remove a thousand cgroups per second.
_MAX_FIRST = 1000


class HeldKnobs:
    """The journal, and the values that this process wrote and read back.

    ``begin`` and ``finish`` raise JournalError if a record cannot be stored.
    ``overwritten`` counts, by knob, the values of ours that another program replaced, except for
    those that were undone by the routine of kubelet or systemd: ``routine`` counts these.
    """

    def __init__(self, journal: Journal, actuators: Mapping[Knob, Actuator]) -> None:
        self._journal = journal
        self._actuators = actuators
        self._applied: dict[tuple[Target, Knob], KnobValue] = {}
        # The originals of before a foreign value became the original.
        self._first: dict[tuple[Target, Knob], KnobValue] = {}
        self.overwritten: Counter[Knob] = Counter()
        self.routine: Counter[Knob] = Counter()

    def records(self) -> list[Record]:
        """Return the records of all held knobs."""
        return list(self._journal.records)

    def get(self, target: Target, knob: Knob) -> Record | None:
        """Return the record of a knob; ``None`` if it is not held."""
        return self._journal.get(target, knob)

    def recorded_original(self, target: Target, knob: Knob) -> KnobValue | None:
        """Return the value to restore; ``None`` for a knob that is not held."""
        record = self.get(target, knob)
        return None if record is None else record.original

    def is_ours(self, record: Record, current: KnobValue) -> bool:
        """Return whether *current* was written, or was about to be written, by this program."""
        actuator = self._actuators[record.knob]
        applied = self._applied.get((record.target, record.knob))
        if applied is not None:
            return actuator.matches(applied, current)
        values = actuator.intermediate_values(record.previous, record.intended)
        if any(actuator.matches(value, current) for value in values):
            return True
        back = (actuator.intermediate_values(value, record.original) for value in values)
        return any(actuator.matches(value, current) for way in back for value in way)

    def disown_foreign(self, target: Target, knob: Knob, current: KnobValue) -> bool:
        """Release a held knob if *current* is foreign; return whether it is.

        Logs a warning, unless it is the routine of kubelet or systemd.
        """
        record = self.get(target, knob)
        if record is None or self.is_ours(record, current):
            return False
        key = record.target, knob
        ours, first = self._applied.get(key, record.intended), self._first.get(key, record.original)
        self.release(target, knob)
        if is_routine(target, current, first):
            self.routine[knob] += 1
            return True
        _log.warning(
            "%s: another program set %s to '%s' (was '%s'): the value is kept",
            target.path,
            knob,
            current,
            ours,
        )
        self.overwritten[knob] += 1
        self._first[key] = first
        if len(self._first) > _MAX_FIRST:
            del self._first[next(iter(self._first))]
        return True

    def begin(self, record: Record) -> None:
        """Store *record* in the journal; called before the kernel is written."""
        self._journal.put(record)

    def unsettle(self, target: Target, knob: Knob) -> None:
        """Forget the value that was read back: a write begins, and may be broken off.

        Until ``finish`` the record says which values are ours, as that of an earlier process does.
        """
        record = self.get(target, knob)
        if record is not None:
            self._applied.pop((record.target, knob), None)

    def finish(self, record: Record, applied: KnobValue, *, refused: bool) -> None:
        """Store *applied*, the value that was read back after the write of *record*."""
        if applied == record.original:
            self.release(record.target, record.knob)
            return
        self._applied[record.target, record.knob] = applied
        if not refused and applied != record.intended:
            self._journal.put(record._replace(intended=applied))  # the kernel rounded it

    def release(self, target: Target, knob: Knob) -> None:
        """Drop the record of a knob that has no value of ours any more."""
        record = self.get(target, knob)
        self._first.pop((target, knob), None)
        if record is not None:
            self._journal.remove(record)
            self._applied.pop((record.target, knob), None)
