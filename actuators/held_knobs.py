# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The knobs that we hold, and whether a value found in the kernel is ours or somebody else's.

After a write in this process the answer is exact: what we left there, or not. For records of
an earlier process the journal answers: any value on the way of its last write is ours.
"""

from collections import Counter
from collections.abc import Mapping
import logging

from actuators.base import Actuator
from actuators.journal import Journal, Record
from controller.core.model import Knob, KnobValue, Target

__all__ = ("HeldKnobs",)

_log = logging.getLogger(__name__)


class HeldKnobs:
    """The journal, and the values that this process left in the kernel.

    Every method that changes something raises JournalError if the journal cannot follow.
    ``overwritten`` counts the values of ours that somebody else replaced.
    """

    def __init__(self, journal: Journal, actuators: Mapping[Knob, Actuator]) -> None:
        self._journal = journal
        self._actuators = actuators
        self._applied: dict[tuple[Target, Knob], KnobValue] = {}
        self.overwritten: Counter[Knob] = Counter()

    def records(self) -> list[Record]:
        """Return all knobs held."""
        return list(self._journal.records.values())

    def get(self, target: Target, knob: Knob) -> Record | None:
        """Return the record of a knob, ``None`` if we do not hold it."""
        return self._journal.get(target, knob)

    def original(self, target: Target, knob: Knob, current: KnobValue) -> KnobValue:
        """Return what the knob goes back to; *current* if we do not hold it."""
        record = self.get(target, knob)
        return current if record is None else record.original

    def is_ours(self, record: Record, current: KnobValue) -> bool:
        """Return whether the value found is one that we wrote, or were about to write."""
        actuator = self._actuators[record.knob]
        applied = self._applied.get((record.target, record.knob))
        if applied is not None:
            return actuator.matches(applied, current)
        on_the_way = actuator.intermediate_values(record.previous, record.intended)
        return any(actuator.matches(value, current) for value in on_the_way)

    def disown_foreign(self, target: Target, knob: Knob, current: KnobValue) -> bool:
        """Give a knob up, once and with a warning, if its value is somebody else's now."""
        record = self.get(target, knob)
        if record is None or self.is_ours(record, current):
            return False
        had = self._applied.get((target, knob), record.intended)
        _log.warning(
            "%s: somebody set %s to '%s' (we had '%s'): it is theirs now",
            target.path,
            knob,
            current,
            had,
        )
        self.overwritten[knob] += 1
        self.release(target, knob)
        return True

    def begin(self, record: Record) -> None:
        """Write down a write that is about to be made."""
        self._journal.put(record)

    def finish(self, record: Record, applied: KnobValue, *, refused: bool) -> None:
        """Take note of what the kernel has after the write of *record*."""
        if applied == record.original:
            self.release(record.target, record.knob)
            return
        self._applied[record.target, record.knob] = applied
        if not refused and applied != record.intended:
            self._journal.put(record._replace(intended=applied))  # rounded by the kernel

    def release(self, target: Target, knob: Knob) -> None:
        """Forget a knob: nothing of ours is in the kernel any more."""
        record = self.get(target, knob)
        if record is not None:
            self._journal.remove(record)
        self._applied.pop((target, knob), None)
