# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Thinning of ticks to moments: what happened in the ticks since the last one is put together."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress
from operator import attrgetter, is_not
from typing import TypeVar

from controller.agent.history.records import Foreign, Moment, Use, Write
from controller.core.decision import (
    Action,
    ChannelState,
    Eviction,
    Failure,
    LoopReport,
    Outcome,
    Plan,
    Verdict,
)
from controller.core.knob_values import parse_quota
from controller.core.model import (
    CgroupId,
    EvictionAnswer,
    Knob,
    KnobReading,
    KnobValue,
    Mode,
    QosClass,
    Snapshot,
    Target,
    TargetKind,
    Workload,
)
from controller.core.units import NS_PER_SEC

__all__ = ("MomentBuilder", "told_loops")

# Of texts and of writes that failed, and of workloads whose use is named.
_MOST = 200
_USES = 20

_Place = tuple[Target, Knob]
_T = TypeVar("_T")


class MomentBuilder:
    """Collects ticks and builds moments of them. Used by one thread.

    ``eventful``: the ticks since the last moment hold something beyond "all is quiet".
    ``cut_cpu_s`` is the sum of ``Moment.cut_cpus`` over the time, in CPU seconds.
    """

    def __init__(self) -> None:
        self._held: dict[_Place, Write] = {}
        self._originals: dict[_Place, KnobValue] = {}
        self._readings: tuple[KnobReading, ...] = ()
        self._granted: dict[CgroupId, float] = {}  # of workloads, and of parents of several
        self._parents: dict[CgroupId, CgroupId] = {}
        self._workloads: tuple[Workload, ...] = ()
        self._best_effort: frozenset[CgroupId] = frozenset()
        self._oncpu_ns: Mapping[CgroupId, int] = {}
        self._last_ns: int | None = None
        self.cut_cpu_s = 0.0
        self._clear()

    def _clear(self) -> None:
        self.eventful = False
        self._anew = False
        self._new_workloads: tuple[Workload, ...] | None = None
        self._writes: dict[_Place, Write] = {}
        self._foreign: list[Foreign] = []
        self._refused: list[Outcome] = []
        self._verdicts: list[Verdict] = []
        self._evictions: list[Eviction] = []
        self._answers: list[EvictionAnswer] = []
        self._dropped = 0

    @property
    def held(self) -> tuple[Write, ...]:
        """The knobs that the agent holds, or in observe mode would hold."""
        return tuple(self._held.values())

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads of the last tick."""
        return self._workloads

    def restart(self) -> None:
        """Every knob was restored, and the next plan is that of a new planner."""
        self._held.clear()
        self._originals.clear()
        self._granted.clear()
        self._readings = ()
        self._anew = self.eventful = True

    def add(
        self,
        snapshot: Snapshot,
        plan: Plan,
        outcomes: Sequence[Outcome],
        workloads: tuple[Workload, ...],
        mode: Mode,
    ) -> None:
        """Take one tick; *outcomes* are those of the actions of *plan*, none in observe mode."""
        if workloads is not self._workloads and workloads != self._workloads:
            self._set_workloads(workloads)
        if snapshot.knobs is not self._readings:
            if mode is Mode.ENFORCE and self._held:
                self._find_foreign(snapshot.knobs)
            self._readings = snapshot.knobs
        if mode is Mode.ENFORCE:
            for outcome in outcomes:
                self._take_outcome(outcome)
        else:
            for action in plan.actions:
                self._take_assumed(action)
        if plan.released:
            self._release_all()
        self._keep(self._verdicts, plan.verdicts)
        self._keep(self._answers, snapshot.evictions)
        if plan.eviction is not None:
            self._evictions.append(plan.eviction)
        if plan.actions or plan.verdicts or plan.eviction or snapshot.evictions:
            self.eventful = True
        elif not self.eventful:
            self.eventful = any(
                demand.applied > 0 or demand.state is not ChannelState.FREE
                for demand in plan.demands
            )

    def build(self, snapshot: Snapshot, plan: Plan, mode: Mode) -> Moment:
        """Return the moment of the ticks so far, of which *snapshot* and *plan* are the last."""
        uses, use_cpus, cut_cpus = self._uses(snapshot, plan)
        overlap = snapshot.core_overlap_ratio
        moment = Moment(
            time_ns=snapshot.time_ns,
            mode=mode,
            anew=self._anew,
            demands=plan.demands,
            loops=told_loops(plan),
            causes=plan.causes,
            rungs=tuple(rung for rung in plan.rungs if rung.part > 0),
            writes=tuple(self._writes.values()),
            foreign=tuple(self._foreign),
            refused=tuple(self._refused),
            verdicts=tuple(self._verdicts),
            evictions=tuple(self._evictions),
            answers=tuple(self._answers),
            uses=uses,
            be_use_cpus=use_cpus,
            cut_cpus=cut_cpus,
            workloads=self._new_workloads,
            pause=snapshot.pause,
            core_overlap_ratio=None if overlap is None else round(overlap, 4),
            dropped=self._dropped,
        )
        self._clear()
        return moment

    def use_cpus(self, snapshot: Snapshot) -> float | None:
        """Return best-effort's use since the last moment, on average; ``None``: not known."""
        cpus = self._cpus(snapshot.time_ns, _oncpu_ns(snapshot, self._best_effort))
        return self._sum(cpus)

    def _set_workloads(self, workloads: tuple[Workload, ...]) -> None:
        self._workloads = self._new_workloads = workloads
        self._best_effort = frozenset(w.cgroup for w in workloads if w.qos is QosClass.BE)
        self.eventful = True
        present = {tuple(w.cgroup) for w in workloads}
        present |= {level[1:3] for w in workloads for level in (w.idle_at, w.quota_at) if level}
        for place in {**self._held, **self._originals}:
            if place[0].kind is TargetKind.CGROUP and place[0][1:3] not in present:
                self._held.pop(place, None)
                self._originals.pop(place, None)
        self._parents = {
            w.cgroup: CgroupId(w.quota_at.scope, w.quota_at.id)
            for w in workloads
            if w.quota_at is not None and w.qos is QosClass.BE
        }
        limited = self._best_effort.union(self._parents.values())
        self._granted = {c: cpus for c, cpus in self._granted.items() if c in limited}

    def _find_foreign(self, readings: tuple[KnobReading, ...]) -> None:
        # Most records are the same objects as before; there are two or more per workload.
        before = self._readings
        same_length = len(before) == len(readings)
        changed = compress(readings, map(is_not, before, readings)) if same_length else readings
        for reading in changed:
            if reading.original is None:
                place = reading.target, reading.knob
                held = self._held.get(place)
                if held is not None and reading.value != held.value:
                    self._release(place)
                    self._keep(self._foreign, [Foreign(*place, held.value, reading.value)])
                    self.eventful = True

    def _take_outcome(self, outcome: Outcome) -> None:
        action = outcome.action
        if outcome.foreign is not None:
            place = action.target, action.knob
            if place in self._held:
                ours = self._held[place].value
                self._keep(self._foreign, [Foreign(*place, ours, outcome.foreign)])
            self._release(place)
        elif outcome.failure is Failure.REFUSED:
            self._keep(self._refused, [outcome])
        elif outcome.failure is None:
            value = action.value if outcome.applied is None else outcome.applied
            self._write(action, value, held=outcome.original is not None)

    def _take_assumed(self, action: Action) -> None:
        place = action.target, action.knob
        original = self._originals.setdefault(place, action.previous)
        held = action.value != original
        if not held:
            del self._originals[place]
        self._write(action, action.value, held=held)

    def _write(self, action: Action, value: KnobValue, *, held: bool) -> None:
        place = action.target, action.knob
        earlier = self._writes.get(place)
        before = action.previous if earlier is None else earlier.before
        write = Write(*place, before, value, action.reason, held)
        self._writes[place] = write
        if not held:
            self._release(place)
            return
        self._held[place] = write
        if action.knob is Knob.CPU_QUOTA:
            cpus = parse_quota(value).cpus
            cgroup = CgroupId(action.target.scope, action.target.id)
            if cpus is not None:
                self._granted[cgroup] = cpus

    def _release(self, place: _Place) -> None:
        self._held.pop(place, None)
        if place[1] is Knob.CPU_QUOTA:
            self._granted.pop(CgroupId(place[0].scope, place[0].id), None)

    def _release_all(self) -> None:
        """Everything is paused: what the plan did not restore went with the kernel's objects."""
        for place, held in list(self._held.items()):
            self._writes[place] = held._replace(held=False, reason="paused")
            self._release(place)
        self._originals.clear()

    def _uses(self, snapshot: Snapshot, plan: Plan) -> tuple[tuple[Use, ...], float | None, float]:
        """Return the largest uses of interest, the use of all best-effort work, and the cut."""
        oncpu_ns = _oncpu_ns(snapshot, self._best_effort)
        cpus = self._cpus(snapshot.time_ns, oncpu_ns)
        last_ns, self._last_ns, self._oncpu_ns = self._last_ns, snapshot.time_ns, oncpu_ns
        if last_ns is None or cpus is None:
            return (), None, 0.0
        cut = self._cut(cpus)
        self.cut_cpu_s += cut * (snapshot.time_ns - last_ns) / NS_PER_SEC
        named = dict.fromkeys(self._granted)
        named |= dict.fromkeys(each.cgroup for cause in plan.causes for each in cause.culprits)
        uses = [Use(c, round(cpus[c], 4), self._granted.get(c)) for c in named if c in cpus]
        uses.sort(key=attrgetter("cpus"), reverse=True)
        return tuple(uses[:_USES]), self._sum(cpus), round(cut, 4)

    def _cpus(self, now_ns: int, oncpu_ns: Mapping[CgroupId, int]) -> dict[CgroupId, float] | None:
        """Return the use of each best-effort workload since the last moment."""
        if self._last_ns is None or self._last_ns >= now_ns:
            return None
        before, dt_ns = self._oncpu_ns, now_ns - self._last_ns
        return {c: max(0, now - before[c]) / dt_ns for c, now in oncpu_ns.items() if c in before}

    def _sum(self, cpus: Mapping[CgroupId, float] | None) -> float | None:
        if cpus is None or (not cpus and self._best_effort):
            return None
        return round(sum(cpus.values()), 4)

    def _cut(self, cpus: Mapping[CgroupId, float]) -> float:
        """Return the CPUs that are used beyond the quotas, of *cpus* by workload."""
        cut = sum(max(0.0, used - self._granted.get(c, used)) for c, used in cpus.items())
        below: dict[CgroupId, float] = defaultdict(float)
        for cgroup, parent in self._parents.items():
            if parent in self._granted:
                used = cpus.get(cgroup, 0.0)
                below[parent] += min(used, self._granted.get(cgroup, used))
        return cut + sum(max(0.0, used - self._granted[parent]) for parent, used in below.items())

    def _keep(self, kept: list[_T], more: Sequence[_T]) -> None:
        room = _MOST - len(kept)
        kept.extend(more[:room])
        self._dropped += max(0, len(more) - room)


def told_loops(plan: Plan) -> tuple[LoopReport, ...]:
    """Return the loops that a moment tells: those that decide, and those above a sweet point."""
    return tuple(
        loop for loop in plan.loops if loop.selected or (loop.filtered_deviation or 0.0) > 0
    )


def _oncpu_ns(snapshot: Snapshot, cgroups: frozenset[CgroupId]) -> Mapping[CgroupId, int]:
    return {
        sample.cgroup: sample.oncpu_ns
        for sample in snapshot.workloads
        if sample.oncpu_ns is not None and sample.cgroup in cgroups
    }
