# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What every knob is set to, what it was before us, and who wrote it last.

A reading that we did not write is somebody else's, and becomes the new original. Ours is then
applied again only if it is stricter, at most three times in ten minutes; after that the rung
is unavailable for that target. Refused writes are tried again after a pause that doubles.

Readings are news only when they differ from the last one: the daemon passes the last known
readings in every tick. It folds the outcomes of its writes into them, so that somebody who
puts the old value back is seen.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from controller.core.decision import Action, Failure, Outcome, Verdict
from controller.core.knob_values import is_same_setting, is_stricter
from controller.core.model import CgroupId, Knob, KnobReading, KnobValue, Target
from controller.core.units import NS_PER_SEC

__all__ = ("KnobState",)

_REAPPLY_LIMIT = 3
_REAPPLY_WINDOW_NS = 600 * NS_PER_SEC
_REMEMBER_NS = 600 * NS_PER_SEC
_FIRST_PAUSE_NS = 1 * NS_PER_SEC
_LONGEST_PAUSE_NS = 60 * NS_PER_SEC


@dataclass(slots=True)
class _Entry:
    """One knob of one target. ``ours`` is what we last wanted there, ``None`` if nothing."""

    target: Target
    knob: Knob
    seen: KnobValue
    original: KnobValue
    value: KnobValue
    ours: KnobValue | None = None
    overwritten: bool = False
    reapplied_ns: deque[int] = field(default_factory=deque)
    unavailable: bool = False
    gone: bool = False
    absent: bool = False
    pause_ns: int = 0
    retry_ns: int = 0

    @property
    def present(self) -> bool:
        """Whether there is something to write to."""
        return not (self.gone or self.absent)

    def movable(self, now_ns: int) -> bool:
        """Whether a write may be tried."""
        return self.present and not self.unavailable and now_ns >= self.retry_ns


# The scope and the id of a target.
_Place = tuple[str, int]
_Key = tuple[_Place, Knob]


class KnobState:
    """The knobs of all targets that were ever read, as far as they are still there.

    After ``learn``: ``quiet`` if nothing happened to any knob but what was asked for, and no
    refused write is due again; then a caller whose wishes did not change need not ask again.
    ``reports`` says what had to be given up.
    """

    __slots__ = (
        "_absent",
        "_entries",
        "_pending",
        "_readings",
        "_retries_ns",
        "quiet",
        "reports",
    )

    def __init__(self) -> None:
        self._entries: dict[Knob, dict[_Place, _Entry]] = {knob: {} for knob in Knob}
        # Those without a reading, with when that was noticed.
        self._absent: dict[_Key, int] = {}
        self._retries_ns: list[int] = []
        self.quiet = False
        self._readings: tuple[KnobReading, ...] = ()
        self._pending: tuple[Action, ...] = ()
        self.reports: list[Verdict] = []

    def reset(self) -> None:
        """Start anew from the next readings (the mode changed)."""
        self._entries = {knob: {} for knob in Knob}
        self._absent.clear()
        self._readings = ()
        self._pending = ()
        self._retries_ns = []

    def update(
        self,
        readings: tuple[KnobReading, ...],
        outcomes: Iterable[Outcome],
        executed: bool,
        now_ns: int,
    ) -> None:
        """Take what became of the last actions, then the readings.

        *executed* says that actions are really written: one without an outcome was not.
        """
        self.reports = []
        self.quiet = True
        if any(now_ns >= retry_ns for retry_ns in self._retries_ns):
            self._retries_ns = [retry_ns for retry_ns in self._retries_ns if retry_ns > now_ns]
            self.quiet = False
        self._update_written(outcomes, executed, now_ns)
        before, self._readings = self._readings, readings
        if readings is before:
            return
        # Mostly the same records, two per workload. Both tuples hold theirs, so an identity
        # belongs to one record only.
        known, here = set(map(id, before)), set(map(id, readings))
        missing = {_key_of(each): each for each in before if id(each) not in here}
        for reading in readings:
            if id(reading) not in known:
                missing.pop(_key_of(reading), None)
                self._read(reading)
        self._mark_missing(missing, now_ns)

    def value(self, scope: str, id_: int, knob: Knob) -> KnobValue | None:
        """Return what the knob is set to, as far as known."""
        entry = self._entries[knob].get((scope, id_))
        return None if entry is None or not entry.present else entry.value

    def original(self, scope: str, id_: int, knob: Knob) -> KnobValue | None:
        """Return what the knob was set to by others."""
        entry = self._entries[knob].get((scope, id_))
        return None if entry is None or not entry.present else entry.original

    def targets(self, knob: Knob) -> list[Target]:
        """Return the targets that have a reading of *knob*."""
        return [each.target for each in self._entries[knob].values() if each.present]

    def movable(self, knob: Knob, now_ns: int) -> list[Target]:
        """Return the targets whose *knob* can be moved now."""
        return [each.target for each in self._entries[knob].values() if each.movable(now_ns)]

    def is_movable(self, target: CgroupId, knob: Knob, now_ns: int) -> bool:
        """Return whether the *knob* of *target* can be moved now."""
        entry = self._entries[knob].get(target)
        return entry is not None and entry.movable(now_ns)

    def held(self) -> list[tuple[Target, Knob]]:
        """Return the knobs that are not at their original value because of us."""
        return [
            (entry.target, entry.knob)
            for entries in self._entries.values()
            for entry in entries.values()
            if entry.ours is not None and entry.present and entry.value != entry.original
        ]

    def blocked(self, targets: Iterable[CgroupId], knob: Knob, now_ns: int) -> frozenset[CgroupId]:
        """Return those of *targets* whose knob cannot be moved now."""
        entries = self._entries[knob]
        return frozenset(
            target
            for target in targets
            if (entry := entries.get(target)) is None or not entry.movable(now_ns)
        )

    def touched(self, knob: Knob) -> list[CgroupId]:
        """Return whose *knob* we changed, also where somebody else has done so since."""
        return [
            CgroupId(*place)
            for place, entry in self._entries[knob].items()
            if entry.ours is not None or entry.overwritten
        ]

    def request(
        self, scope: str, id_: int, knob: Knob, value: KnobValue, reason: str, now_ns: int
    ) -> Action | None:
        """Return the action that sets the knob to *value*, or ``None`` if there is none to take."""
        entry = self._entries[knob].get((scope, id_))
        if entry is None or not entry.present or entry.unavailable or entry.value == value:
            return None
        if now_ns < entry.retry_ns:
            return None
        if entry.overwritten and not self._may_reapply(entry, value, now_ns):
            return None
        return self._write(entry, value, reason, value)

    def restore(self, scope: str, id_: int, knob: Knob, reason: str, now_ns: int) -> Action | None:
        """Return the action that puts the original back, or ``None`` if it is in place."""
        entry = self._entries[knob].get((scope, id_))
        if entry is None or not entry.present:
            return None
        entry.overwritten = False
        if entry.ours is None or entry.value == entry.original:
            entry.ours = None
            return None
        if now_ns < entry.retry_ns:
            return None
        return self._write(entry, entry.original, reason, entry.ours)

    def commit(self, actions: tuple[Action, ...]) -> None:
        """Remember the actions of this tick, whose outcomes come with the next."""
        self._pending = actions

    def _write(self, entry: _Entry, value: KnobValue, reason: str, ours: KnobValue) -> Action:
        action = Action(
            target=entry.target, knob=entry.knob, previous=entry.value, value=value, reason=reason
        )
        # Believed until an outcome says otherwise; in observe mode that is the "as if".
        entry.value = value
        entry.ours = ours
        return action

    def _update_written(self, outcomes: Iterable[Outcome], executed: bool, now_ns: int) -> None:
        told = {_key_of(outcome.action): outcome for outcome in outcomes}
        for action in self._pending:
            place, knob = key = _key_of(action)
            entry = self._entries[knob].get(place)
            if entry is None:
                continue
            outcome = told.get(key)
            if outcome is None:
                if executed:
                    entry.value = action.previous
                    self.quiet = False
                continue
            if outcome.failure is Failure.GONE:
                entry.gone = True
                self.quiet = False
                continue
            if outcome.foreign is not None:
                self._disown(entry, outcome.foreign)
                continue
            if outcome.failure is Failure.REFUSED:
                entry.value = outcome.applied or action.previous
                entry.pause_ns = min(_LONGEST_PAUSE_NS, 2 * entry.pause_ns or _FIRST_PAUSE_NS)
                entry.retry_ns = now_ns + entry.pause_ns
                self._retries_ns.append(entry.retry_ns)
                self.quiet = False
            else:
                entry.value = outcome.applied or action.value
                if entry.ours is not None:
                    entry.ours = entry.value if entry.value != entry.original else entry.ours
                entry.pause_ns = 0
                entry.retry_ns = 0
        self._pending = ()

    def _mark_missing(self, missing: Iterable[_Key], now_ns: int) -> None:
        # A target without a reading is not acted on. It is remembered for a while: should it
        # come back with our value still in place, that must not pass for its original.
        for place, knob in missing:
            self._entries[knob][place].absent = True
            self._absent[place, knob] = now_ns
            self.quiet = False
        for place, knob in [
            key for key, since_ns in self._absent.items() if now_ns - since_ns > _REMEMBER_NS
        ]:
            del self._entries[knob][place]
            del self._absent[place, knob]

    def _read(self, reading: KnobReading) -> None:
        target, knob, value = reading
        place, _ = key = _key_of(reading)
        entry = self._entries[knob].get(place)
        if entry is None:
            self._entries[knob][place] = _Entry(target, knob, value, value, value)
            self.quiet = False
            return
        if entry.absent:
            entry.absent = False
            del self._absent[key]
            self.quiet = False
        if value == entry.seen:
            return
        entry.seen = value
        if value == entry.value:
            return
        if entry.ours is not None and is_same_setting(knob, value, entry.ours):
            entry.value = value
            return
        self._disown(entry, value)

    def _disown(self, entry: _Entry, value: KnobValue) -> None:
        # Somebody else wrote: that is the original now.
        self.quiet = False
        entry.overwritten = entry.overwritten or entry.ours is not None
        entry.original = entry.value = value
        entry.ours = None

    def _may_reapply(self, entry: _Entry, value: KnobValue, now_ns: int) -> bool:
        if not is_stricter(entry.knob, value, entry.original):
            return False
        times = entry.reapplied_ns
        while times and times[0] <= now_ns - _REAPPLY_WINDOW_NS:
            times.popleft()
        if len(times) >= _REAPPLY_LIMIT:
            entry.unavailable = True
            text = (
                f"{entry.knob} of {entry.target.path} was overwritten by somebody else "
                f"{len(times) + 1} times in 10 minutes ({entry.original!r}): left alone from now on"
            )
            self.reports.append(Verdict(subject=entry.target.path, text=text))
            return False
        times.append(now_ns)
        entry.overwritten = False
        return True


def _key_of(each: Action | KnobReading) -> _Key:
    return (each.target.scope, each.target.id), each.knob
