# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Thinned snapshots: entries of a recording, seconds apart, of which a block holds the changes.

The first entry of a block is complete and has settings and workloads; the others hold the records
that changed. A record that is gone is written once more without a value. Counters are cumulative,
so a difference over a longer time is right; a replay has a longer tick in its settings.

A knob that the agent holds is written with its original value, as if nothing had been changed: the
replayed planner makes decisions of its own, and in observe mode takes the readings as they are.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from controller.agent.history.records import Line, Start
from controller.agent.recording import Entry, RecordingError
from controller.core.decision import Plan
from controller.core.model import (
    Blame,
    CgroupId,
    Knob,
    KnobReading,
    KnobValue,
    Mode,
    Snapshot,
    Target,
    Workload,
    WorkloadSample,
)
from controller.core.settings import Settings

__all__ = ("SnapshotThinner", "entries")

_GONE = KnobValue("")
_T = TypeVar("_T")


class _Delta(Generic[_T]):
    """The records of one kind that were written last, by key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, _T] = {}

    def update(
        self, now: Iterable[_T], key: Callable[[_T], Hashable], gone: Callable[[_T], _T]
    ) -> tuple[_T, ...]:
        """Return the records of *now* that changed, and for those that left, what *gone* makes."""
        before, self._last = self._last, {key(each): each for each in now}
        changed = []
        for identity, each in self._last.items():
            last = before.pop(identity, None)
            if last is not each and last != each:
                changed.append(each)
        changed += [gone(each) for each in before.values()]
        return tuple(changed)


class SnapshotThinner:
    """Makes the entries of one block after another."""

    def __init__(self) -> None:
        self.begin_block()

    def begin_block(self) -> None:
        """Make the next entry complete."""
        self._complete = True
        self._samples = _Delta[WorkloadSample]()
        self._blame = _Delta[Blame]()
        self._knobs = _Delta[KnobReading]()
        self._settings: Settings | None = None
        self._workloads: tuple[Workload, ...] | None = None

    def entry(
        self, snapshot: Snapshot, plan: Plan, settings: Settings, workloads: tuple[Workload, ...]
    ) -> Entry:
        """Return the entry of a tick; its plan has the demands only."""
        thinned = replace(
            snapshot,
            workloads=self._samples.update(snapshot.workloads, _sample_key, _sample_gone),
            blame=self._blame.update(snapshot.blame, _blame_key, _blame_gone),
            knobs=self._knobs.update(map(_original, snapshot.knobs), _knob_key, _knob_gone),
        )
        entry = Entry(
            snapshot=thinned,
            outcomes=(),
            plan=Plan(time_ns=plan.time_ns, demands=plan.demands),
            anew=self._complete,
            settings=None if settings is self._settings else settings,
            workloads=None if workloads is self._workloads else workloads,
        )
        self._complete = False
        self._settings, self._workloads = settings, workloads
        return entry


def entries(lines: Iterable[Line | str]) -> Iterator[Entry]:
    """Yield complete entries for a replay, from the lines of the stream of snapshots.

    A planner is made anew where the times start again (the node was booted) or a run begins.

    :raises RecordingError: there are none.
    """
    samples: dict[Hashable, WorkloadSample] = {}
    blame: dict[Hashable, Blame] = {}
    knobs: dict[Hashable, KnobReading] = {}
    last_ns: int | None = None
    interval_ns = 0
    new_run = True
    based = False
    for line in lines:
        if isinstance(line, str):
            based = False  # until the next complete one: a change may be missing
            continue
        record = line.record
        if isinstance(record, Start):
            new_run |= record.new_run
            interval_ns = record.interval_ns
        if not isinstance(record, Entry):
            continue
        if record.anew:
            samples, blame, knobs = {}, {}, {}
            based = True
        if not based:
            continue
        snapshot = record.snapshot
        _merge(samples, snapshot.workloads, _sample_key, _sample_gone)
        _merge(blame, snapshot.blame, _blame_key, _blame_gone)
        _merge(knobs, snapshot.knobs, _knob_key, _knob_gone)
        new_run |= last_ns is None or snapshot.time_ns <= last_ns
        last_ns = snapshot.time_ns
        settings = record.settings
        if settings is not None:
            settings = replace(settings, tick_ns=interval_ns, mode=Mode.OBSERVE)
        if new_run and settings is None:
            continue
        yield replace(
            record,
            snapshot=replace(
                snapshot,
                workloads=tuple(samples.values()),
                blame=tuple(blame.values()),
                knobs=tuple(knobs.values()),
            ),
            anew=new_run,
            settings=settings,
        )
        new_run = False
    if last_ns is None:
        raise RecordingError("the history has no snapshots")


def _merge(
    records: dict[Hashable, _T],
    changed: Iterable[_T],
    key: Callable[[_T], Hashable],
    gone: Callable[[_T], _T],
) -> None:
    for each in changed:
        if each == gone(each):
            records.pop(key(each), None)
        else:
            records[key(each)] = each


def _sample_key(sample: WorkloadSample) -> CgroupId:
    return sample.cgroup


def _sample_gone(sample: WorkloadSample) -> WorkloadSample:
    return WorkloadSample(sample.cgroup)


def _blame_key(pair: Blame) -> tuple[CgroupId, CgroupId | None, bool]:
    return pair[:3]


def _blame_gone(pair: Blame) -> Blame:
    return pair._replace(wait_ns=-1)


def _knob_key(reading: KnobReading) -> tuple[Target, Knob]:
    return reading.target, reading.knob


def _knob_gone(reading: KnobReading) -> KnobReading:
    return reading._replace(value=_GONE)


def _original(reading: KnobReading) -> KnobReading:
    if reading.original is None:
        return reading
    return reading._replace(value=reading.original, original=None)
