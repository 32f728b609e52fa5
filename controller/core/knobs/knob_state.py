# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The value, the original value and the owner of every knob, derived from readings.

The executor decides whose value a knob has: a reading carries the original while the agent holds
the knob. This module adds what the planner wants of it. A knob with a requested value that is not
held any more was overwritten by another program; ``KnobEntry`` decides what follows.

The caller passes the last known readings in every tick, with the outcomes of its writes folded in.
In observe mode no knob is held: a requested value counts as written, and a reading that changes is
foreign.

Of each knob with a value of ours it keeps since when and why, for the record of what is in force.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import is_not
from types import MappingProxyType

from controller.core.decision import Action, Demand, Failure, Outcome, Verdict
from controller.core.in_force import InForce, KnobKey, held_now, in_force, key_of
from controller.core.knob_comparison import is_stricter
from controller.core.knobs.knob_entry import KEEP_NS, KnobEntry
from controller.core.model import CgroupId, Knob, KnobReading, KnobValue, Target, Workload
from controller.core.workload_index import WorkloadIndex

__all__ = ("KnobState", "Place")

# Most knobs without a reading that are kept: a tenant may make a thousand cgroups per second.
_MAX_ABSENT = 1000

# The scope and the id of a target.
Place = tuple[str, int]
_Workloads = Mapping[CgroupId, Workload]


@dataclass(slots=True)
class KnobState:
    """The knobs of all targets that have a reading.

    The last thousand that had one and a value of the agent's in the last ten minutes are kept.

    Valid after ``update``: ``quiet`` is true if no knob changed but by the requested writes, and no
    refused write is due again. A caller whose requests did not change need not repeat them then.
    ``reports`` are the knobs that became unavailable in this tick, and those of which a routine was
    seen for the first time.
    """

    quiet: bool = False
    reports: list[Verdict] = field(default_factory=list)
    _entries: dict[Knob, dict[Place, KnobEntry]] = field(
        default_factory=lambda: {knob: {} for knob in Knob}
    )
    # The knobs without a reading, with the time since when, in ascending order.
    _absent: dict[KnobKey, int] = field(default_factory=dict)
    _executed: bool = False
    _retries_ns: list[int] = field(default_factory=list)
    _readings: tuple[KnobReading, ...] = ()
    # What outcomes and readings since the last update show, see ``quiet``.
    _disturbed: bool = False
    # The last actions, the demands behind them by reason, and whether everything was released.
    _pending: tuple[Action, ...] = ()
    _why: Mapping[str, Demand] = field(default_factory=dict)
    _released: bool = False
    _record: InForce | None = None
    # The workloads that the record is for: best-effort ones, and those of them that are paused.
    _workloads: tuple[_Workloads, _Workloads] = ({}, {})
    _time_ns: int = 0  # of the last update

    def reset(self) -> None:
        """Discard everything and start from the next readings (the mode changed)."""
        self._entries = {knob: {} for knob in Knob}
        self._absent.clear()
        self._readings = ()
        self._pending = ()
        self._retries_ns = []
        self._record = None

    def update(
        self,
        readings: tuple[KnobReading, ...],
        outcomes: Iterable[Outcome],
        executed: bool,
        now_ns: int,
    ) -> None:
        """Take the outcomes of the last actions (see ``settle``), then the readings.

        *executed*: actions are really written, so an action without an outcome was not. Without
        *executed* (observe mode) every action counts as written.
        """
        self.reports = []
        self._executed = executed
        self.settle(outcomes)
        self._time_ns = now_ns
        if any(now_ns >= retry_ns for retry_ns in self._retries_ns):
            self._retries_ns = [retry_ns for retry_ns in self._retries_ns if retry_ns > now_ns]
            self._disturbed = True
        before, self._readings = self._readings, readings
        if readings is not before:
            self._read_changed(before, readings, now_ns)
        self.quiet, self._disturbed = not self._disturbed, False
        if not self.quiet:
            for entry in self._all():
                self._note(entry)

    def _read_changed(
        self, before: tuple[KnobReading, ...], readings: tuple[KnobReading, ...], now_ns: int
    ) -> None:
        # Most records are the same objects as before; there are two or more per workload. Both
        # tuples keep their records alive, so no two records have the same id.
        known, present = set(map(id, before)), set(map(id, readings))
        missing = {key_of(each): each for each in before if id(each) not in present}
        for reading in readings:
            if id(reading) not in known:
                missing.pop(key_of(reading), None)
                self._read(reading)
        self._mark_missing(missing, now_ns)

    def value(self, scope: str, id_: int, knob: Knob) -> KnobValue | None:
        """Return the value in force, as far as known; ``None`` without a reading."""
        entry = self._present(scope, id_, knob)
        return None if entry is None else entry.value

    def original(self, scope: str, id_: int, knob: Knob) -> KnobValue | None:
        """Return the value that a restore puts back; ``None`` without a reading."""
        entry = self._present(scope, id_, knob)
        return None if entry is None else entry.original

    def _present(self, scope: str, id_: int, knob: Knob) -> KnobEntry | None:
        entry = self._entries[knob].get((scope, id_))
        return None if entry is None or entry.absent else entry

    def targets(self, knob: Knob) -> list[Target]:
        """Return the targets that have a reading of *knob*."""
        return [each.target for each in self._entries[knob].values() if not each.absent]

    def movable(self, knob: Knob, now_ns: int) -> list[Target]:
        """Return the targets whose *knob* can be moved now."""
        return [each.target for each in self._entries[knob].values() if each.movable(now_ns)]

    def is_movable(self, target: CgroupId, knob: Knob, now_ns: int) -> bool:
        """Return whether the *knob* of *target* can be moved now."""
        entry = self._entries[knob].get(target)
        return entry is not None and entry.movable(now_ns)

    def held(self) -> list[tuple[Target, Knob]]:
        """Return the knobs with a value of ours in force."""
        return [(each.target, each.knob) for each in self._all() if each.is_ours]

    def _all(self) -> Iterator[KnobEntry]:
        return chain.from_iterable(entries.values() for entries in self._entries.values())

    def blocked(self, targets: Iterable[CgroupId], knob: Knob, now_ns: int) -> frozenset[CgroupId]:
        """Return the members of *targets* whose *knob* cannot be moved now."""
        return frozenset(each for each in targets if not self.is_movable(each, knob, now_ns))

    def touched(self, knob: Knob) -> list[CgroupId]:
        """Return the targets whose *knob* the agent changed, also if it was overwritten since."""
        return [CgroupId(*place) for place, entry in self._entries[knob].items() if entry.touched]

    def request(
        self, scope: str, id_: int, knob: Knob, value: KnobValue, reason: str, now_ns: int
    ) -> Action | None:
        """Return the action that sets the knob to *value*.

        ``None``: the knob has this value, or cannot be moved now.
        """
        entry = self._entries[knob].get((scope, id_))
        if entry is None or not entry.movable(now_ns) or entry.value == value:
            return None
        if entry.overwritten:
            if not self._may_reapply(entry, value, now_ns):
                return None
        elif entry.requested is None:
            entry.first = entry.original
        return entry.write(value, reason, requested=value)

    def _may_reapply(self, entry: KnobEntry, value: KnobValue, now_ns: int) -> bool:
        allowed, report, due_ns = entry.reapply(value, now_ns)
        if report:
            self.reports.append(Verdict(subject=entry.target.path, text=report))
        if due_ns and due_ns not in self._retries_ns:
            self._retries_ns.append(due_ns)
        return allowed

    def restore(self, scope: str, id_: int, knob: Knob, reason: str, now_ns: int) -> Action | None:
        """Return the action that puts the original back.

        ``None``: the original is in place, or the knob cannot be written now.
        """
        entry = self._present(scope, id_, knob)
        if entry is None:
            return None
        entry.overwritten = False
        if entry.value == entry.original:
            entry.requested = None
            return None
        if now_ns < entry.retry_ns:
            return None
        return entry.write(entry.original, reason, requested=None)

    def limit(
        self, knob: Knob, values: Iterable[tuple[Place, KnobValue | None]], reason: str, now_ns: int
    ) -> list[Action]:
        """Return the actions that set *values*, by scope and id, where they limit anything.

        ``None`` and a value that is not stricter than the original put the original back.
        """
        actions = []
        for place, value in values:
            original = self.original(*place, knob)
            if value is not None and original is not None and is_stricter(knob, value, original):
                actions.append(self.request(*place, knob, value, reason, now_ns))
            else:
                actions.append(self.restore(*place, knob, reason, now_ns))
        return [action for action in actions if action is not None]

    def commit(
        self,
        actions: tuple[Action, ...],
        why: Mapping[str, Demand] = MappingProxyType({}),
        released: bool = False,
    ) -> None:
        """Take the actions of this tick, whose outcomes are passed to ``settle``.

        *why* maps reasons of actions to the demands behind them. *released*: everything is paused.
        """
        self._pending, self._why, self._released = actions, why, released

    def in_force(self, index: WorkloadIndex) -> InForce:
        """Return the record of what is in force for the best-effort workloads of *index*."""
        workloads = index.best_effort, index.paused
        if any(map(is_not, workloads, self._workloads)):
            self._workloads, self._record = workloads, None
        if self._record is None:
            knobs = tuple(each.held for each in self._all() if each.held is not None)
            self._record = in_force(self._time_ns, knobs, *workloads, index.served)
        elif self._record.time_ns != self._time_ns:
            self._record = replace(self._record, time_ns=self._time_ns)
        return self._record

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        """Take the *outcomes* of the last actions, unless they were taken."""
        by_key = {key_of(outcome.action): outcome for outcome in outcomes}
        actions, self._pending = self._pending, ()
        for action in actions:
            place, knob = key = key_of(action)
            entry, outcome = self._entries[knob][place], by_key.get(key)
            if outcome is not None:
                self._settle(entry, outcome)
            elif self._executed:
                entry.take_back()
                self._note(entry)
                self._disturbed = True
            else:
                self._note(entry, action)
        if self._released:  # the knobs without an outcome went with kernel objects
            self._released, self._record = False, None
            for entry in self._all():
                if key_of(entry.reading) not in by_key:
                    entry.held = None

    def _settle(self, entry: KnobEntry, outcome: Outcome) -> None:
        written = outcome.foreign is None and outcome.failure is None
        entry.settle(outcome)
        self._note(entry, outcome.action if written else None)
        if outcome.failure is Failure.GONE:  # it is lost
            entry.held = self._record = None
        if outcome.retry_ns:
            self._retries_ns.append(outcome.retry_ns)
        self._disturbed |= not written

    def _note(self, entry: KnobEntry, action: Action | None = None) -> None:
        """Keep since when and why a value of ours is in force; *action* brought it into force."""
        known, held = entry.held, None
        if entry.is_ours:
            now = entry.reading._replace(value=entry.value, original=entry.original)
            demand = None if action is None else self._why.get(action.reason)
            held = held_now(now, known, self._time_ns, action, demand)
        if held is not known:
            entry.held, self._record = held, None

    def _mark_missing(self, missing: Iterable[KnobKey], now_ns: int) -> None:
        # A target without a reading is not moved. If the agent changed it, its entry is kept for a
        # while: if the target comes back with the agent's value in place, that value must not be
        # taken for the original.
        for place, knob in missing:
            self._disturbed = True
            entry = self._entries[knob][place]
            entry.absent = True
            self._note(entry)
            if entry.touched or entry.reapplied_ns:
                self._absent[place, knob] = now_ns
            else:
                del self._entries[knob][place]
        while self._absent:
            (place, knob), since_ns = next(iter(self._absent.items()))
            if len(self._absent) <= _MAX_ABSENT and now_ns - since_ns <= KEEP_NS:
                break
            del self._entries[knob][place], self._absent[place, knob]

    def _read(self, reading: KnobReading) -> None:
        place, knob = key = key_of(reading)
        entry = self._entries[knob].get(place)
        if entry is None:
            entry = KnobEntry(reading, reading.value, reading.original or reading.value)
            entry.requested = None if reading.original is None else reading.value
            self._entries[knob][place] = entry
            self._disturbed = True
            return
        if entry.absent:
            entry.absent = False
            del self._absent[key]
            self._disturbed = True
        self._disturbed |= entry.read(reading, self._executed)
