# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Held knobs: those with a value of ours, and the test of ownership of a value.

A knob is held from the first write until it has its original value again or another program
writes it, and longer if a part of its value is still ours then. For a knob that this process wrote,
a value is ours if it matches the value read back after the write. After a write that an error broke
off, and for a record of an earlier process, which may have ended during the write, every
intermediate value of the last write is ours, and every intermediate value on the way from there to
the original, because a restore goes on without a record of its own where the journal cannot be
written.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
import logging
import time

from actuators.base import Actuator
from actuators.foreign_values import original_after
from actuators.journal import Journal, JournalError, Record
from controller.core.knob_comparison import is_managed, is_routine
from controller.core.knob_values import write_text
from controller.core.model import Knob, KnobValue, Target

__all__ = ("HeldKnobs",)

_log = logging.getLogger(__name__)
# Most first values that are kept: a tenant may make and remove a thousand cgroups per second.
_MAX_FIRST = 1000
# In a cgroup of kubelet or systemd so many new values within this time are changes of its
# settings. More of them are two programs on one knob, which the planner then gives up.
_SETTINGS, _SETTINGS_S = 3, 600.0


@dataclass(slots=True)
class _Past:
    """What was found in a knob: ``first``, before any foreign value became the original, and when
    its manager gave it new values.
    """

    first: KnobValue
    settings_s: deque[float] = field(default_factory=lambda: deque(maxlen=_SETTINGS))


class HeldKnobs:
    """The journal, and the values that this process wrote and read back.

    ``begin`` and ``finish`` raise JournalError if a record cannot be stored.
    ``overwritten`` counts, by knob, the values of ours that another program replaced, except for
    what kubelet and systemd do in their cgroups: ``routine`` counts the values that they put back,
    and new ones such as those of an in-place resize.

    :param clock: seconds of any steady clock.
    """

    def __init__(
        self,
        journal: Journal,
        actuators: Mapping[Knob, Actuator],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._actuators = actuators
        self._applied: dict[tuple[Target, Knob], KnobValue] = {}
        self._clock = clock
        self._past: dict[tuple[Target, Knob], _Past] = {}
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
        matches = self._actuators[record.knob].matches
        return any(matches(value, current) for value in self._ours(record))

    def _ours(self, record: Record) -> Iterator[KnobValue]:
        """Yield the values that this program wrote, or was about to write; some of them twice."""
        applied = self._applied.get((record.target, record.knob))
        if applied is not None:
            yield applied
            return
        actuator = self._actuators[record.knob]
        values = actuator.intermediate_values(record.previous, record.intended)
        yield from values
        for value in values:
            yield from actuator.intermediate_values(value, record.original)

    def disown_foreign(self, target: Target, knob: Knob, current: KnobValue) -> bool:
        """Take over *current* if it is foreign, see ``take_over``; return whether it is.

        Logs a warning, unless it is usual for kubelet or systemd.
        """
        record = self.get(target, knob)
        if record is None or self.is_ours(record, current):
            return False
        key = record.target, knob
        ours = self._applied.get(key, record.intended)
        past = self._past.get(key) or _Past(record.original)
        self.take_over(record, current)
        if is_routine(target, current, past.first):
            self.routine[knob] += 1
            return True
        usual = current != record.original and self._is_setting(target, past)
        _log.log(
            logging.INFO if usual else logging.WARNING,
            "%s set %s, in place of '%s' by this agent: it is the original from now on",
            "kubelet or systemd" if usual else "another program",
            write_text(knob, target.path, current),
            ours,
        )
        (self.routine if usual else self.overwritten)[knob] += 1
        self._past[key] = past
        if len(self._past) > _MAX_FIRST:
            del self._past[next(iter(self._past))]
        return True

    def take_over(self, record: Record, current: KnobValue) -> None:
        """Take the foreign value *current* as the original of a held knob.

        A part of it may still be ours, such as the limit of one of two disks. Then the record has
        what is to be restored. Otherwise the knob is released.
        """
        key = record.target, record.knob
        original = original_after(record.knob, {*self._ours(record)}, current, record.original)
        if original == current:
            self.release(*key)
            return
        after = record._replace(original=original, previous=current, intended=current)
        try:
            self._journal.put(after)
        except JournalError as error:
            # The record on disk leads to the same original.
            _log.debug("%s", error)
            self._journal.amend(after)
        self._applied[key] = current

    def _is_setting(self, target: Target, past: _Past) -> bool:
        if not is_managed(target):
            return False
        now_s, times = self._clock(), past.settings_s
        if len(times) == _SETTINGS and now_s - times[0] < _SETTINGS_S:
            return False
        times.append(now_s)
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
        self._past.pop((target, knob), None)
        if record is not None:
            self._journal.remove(record)
            self._applied.pop((record.target, knob), None)
