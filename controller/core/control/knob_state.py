# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The value, the original value and the owner of every knob.

A value that the agent did not write is foreign, and becomes the new original. The agent's value is
then applied again only if it is stricter, at most three times in ten minutes; after that the knob
of this target is unavailable. A refused write is tried again after a pause that doubles.

The caller passes the last known readings in every tick. A reading is evaluated only if it differs
from the last one of its knob. The caller folds the outcomes of its writes into the readings, so a
program that writes the old value back is detected.
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
_KEEP_ABSENT_NS = 600 * NS_PER_SEC
_FIRST_PAUSE_NS = 1 * NS_PER_SEC
_LONGEST_PAUSE_NS = 60 * NS_PER_SEC


@dataclass(slots=True)
class _Entry:
    """One knob of one target.

    ``seen`` is the last reading, ``value`` the value in force as far as known, ``ours`` the value
    that the agent requested last (``None``: none). ``overwritten``: a foreign value replaced ours,
    and ours was not applied again. ``unavailable``: ours was replaced too often. ``gone``: the
    target does not exist any more. ``absent``: there is no reading. ``pause_ns`` is the pause after
    a refused write, ``retry_ns`` its end.
    """

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
        """Whether the target exists and has a reading."""
        return not (self.gone or self.absent)

    def movable(self, now_ns: int) -> bool:
        """Whether a write may be tried."""
        return self.present and not self.unavailable and now_ns >= self.retry_ns


# The scope and the id of a target.
_Place = tuple[str, int]
_Key = tuple[_Place, Knob]


class KnobState:
    """The knobs of all targets that have a reading, or had one in the last ten minutes.

    Valid after ``update``: ``quiet`` is true if no knob changed but by the requested writes, and no
    refused write is due again. A caller whose requests did not change need not repeat them then.
    ``reports`` are the knobs that became unavailable in this tick.
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
        # The knobs without a reading, with the time since when.
        self._absent: dict[_Key, int] = {}
        self._retries_ns: list[int] = []
        self.quiet = False
        self._readings: tuple[KnobReading, ...] = ()
        self._pending: tuple[Action, ...] = ()
        self.reports: list[Verdict] = []

    def reset(self) -> None:
        """Discard everything and start from the next readings (the mode changed)."""
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
        """Take the outcomes of the last actions, then the readings.

        *executed*: actions are really written, so an action without an outcome was not. Without
        *executed* (observe mode) every action counts as written.
        """
        self.reports = []
        self.quiet = True
        if any(now_ns >= retry_ns for retry_ns in self._retries_ns):
            self._retries_ns = [retry_ns for retry_ns in self._retries_ns if retry_ns > now_ns]
            self.quiet = False
        self._update_pending(outcomes, executed, now_ns)
        before, self._readings = self._readings, readings
        if readings is before:
            return
        # Most records are the same objects as before; there are two or more per workload. Both
        # tuples keep their records alive, so no two records have the same id.
        known, present = set(map(id, before)), set(map(id, readings))
        missing = {_key_of(each): each for each in before if id(each) not in present}
        for reading in readings:
            if id(reading) not in known:
                missing.pop(_key_of(reading), None)
                self._read(reading)
        self._mark_missing(missing, now_ns)

    def value(self, scope: str, id_: int, knob: Knob) -> KnobValue | None:
        """Return the value in force, as far as known; ``None`` without a reading."""
        entry = self._entries[knob].get((scope, id_))
        return None if entry is None or not entry.present else entry.value

    def original(self, scope: str, id_: int, knob: Knob) -> KnobValue | None:
        """Return the last value that the agent did not write; ``None`` without a reading."""
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
        """Return the knobs whose value the agent wrote and that differ from their original."""
        return [
            (entry.target, entry.knob)
            for entries in self._entries.values()
            for entry in entries.values()
            if entry.ours is not None and entry.present and entry.value != entry.original
        ]

    def blocked(self, targets: Iterable[CgroupId], knob: Knob, now_ns: int) -> frozenset[CgroupId]:
        """Return the members of *targets* whose *knob* cannot be moved now."""
        entries = self._entries[knob]
        return frozenset(
            target
            for target in targets
            if (entry := entries.get(target)) is None or not entry.movable(now_ns)
        )

    def touched(self, knob: Knob) -> list[CgroupId]:
        """Return the targets whose *knob* the agent changed, also if it was overwritten since."""
        return [
            CgroupId(*place)
            for place, entry in self._entries[knob].items()
            if entry.ours is not None or entry.overwritten
        ]

    def request(
        self, scope: str, id_: int, knob: Knob, value: KnobValue, reason: str, now_ns: int
    ) -> Action | None:
        """Return the action that sets the knob to *value*.

        ``None``: the knob has this value, or cannot be moved now.
        """
        entry = self._entries[knob].get((scope, id_))
        if entry is None or not entry.present or entry.unavailable or entry.value == value:
            return None
        if now_ns < entry.retry_ns:
            return None
        if entry.overwritten and not self._may_reapply(entry, value, now_ns):
            return None
        return self._write(entry, value, reason, value)

    def restore(self, scope: str, id_: int, knob: Knob, reason: str, now_ns: int) -> Action | None:
        """Return the action that puts the original back.

        ``None``: the original is in place, or the knob cannot be written now.
        """
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
        """Take the actions of this tick, whose outcomes are passed with the next tick."""
        self._pending = actions

    def _write(self, entry: _Entry, value: KnobValue, reason: str, ours: KnobValue) -> Action:
        action = Action(
            target=entry.target, knob=entry.knob, previous=entry.value, value=value, reason=reason
        )
        # Assumed to be written until an outcome shows the contrary. In observe mode there are no
        # outcomes, so the assumption stays.
        entry.value = value
        entry.ours = ours
        return action

    def _update_pending(self, outcomes: Iterable[Outcome], executed: bool, now_ns: int) -> None:
        by_key = {_key_of(outcome.action): outcome for outcome in outcomes}
        for action in self._pending:
            place, knob = key = _key_of(action)
            entry = self._entries[knob].get(place)
            if entry is None:
                continue
            outcome = by_key.get(key)
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
                self._take_foreign(entry, outcome.foreign)
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
        # A target without a reading is not moved. Its entry is kept for a while: if the target
        # comes back with the agent's value in place, that value must not be taken for the original.
        for place, knob in missing:
            self._entries[knob][place].absent = True
            self._absent[place, knob] = now_ns
            self.quiet = False
        for place, knob in [
            key for key, since_ns in self._absent.items() if now_ns - since_ns > _KEEP_ABSENT_NS
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
        self._take_foreign(entry, value)

    def _take_foreign(self, entry: _Entry, value: KnobValue) -> None:
        # A foreign value becomes the original.
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
                f"{entry.knob} of {entry.target.path} was overwritten by another program "
                f"{len(times) + 1} times in 10 minutes, last with {entry.original!r}: "
                "it is not written any more"
            )
            self.reports.append(Verdict(subject=entry.target.path, text=text))
            return False
        times.append(now_ns)
        entry.overwritten = False
        return True


def _key_of(each: Action | KnobReading) -> _Key:
    return (each.target.scope, each.target.id), each.knob
