# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Thinning of ticks to moments: what happened in the ticks since the last one is put together."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

from actuators.ordering import is_passing
from controller.agent.history.records import (
    Asked,
    Foreign,
    HeldSince,
    Moment,
    SlowTime,
    Suffered,
    Use,
    Write,
)
from controller.core.decision import (
    ChannelState,
    Eviction,
    Failure,
    IndicatorStatus,
    LoopReport,
    Outcome,
    Plan,
    SlowBecause,
    SlowService,
    Verdict,
)
from controller.core.in_force import HeldKnob, InForce, KnobKey, key_of
from controller.core.knob_values import parse_quota
from controller.core.model import (
    CgroupId,
    Channel,
    EvictionAnswer,
    IndicatorName,
    Knob,
    KnobValue,
    Mode,
    QosClass,
    Snapshot,
    Workload,
)
from controller.core.units import NS_PER_SEC
from controller.telemetry.suffering import SufferingClock, is_worse

__all__ = ("MomentBuilder", "told_loops")

# Of texts and of writes that failed, and of workloads whose use is named.
_MOST = 200
_USES = 20

_T = TypeVar("_T")


class MomentBuilder:
    """Collects ticks and builds moments of them. Used by one thread.

    ``eventful``: the ticks since the last moment hold something beyond "all is quiet".
    ``cut_cpu_s`` is the sum of ``Moment.cut_cpus`` over the time, in CPU seconds.
    """

    def __init__(self) -> None:
        self._in_force = InForce()
        self._held: dict[KnobKey, HeldKnob] = {}
        self._granted: dict[CgroupId, float] = {}  # of workloads, and of parents of several
        self._parents: dict[CgroupId, CgroupId] = {}
        self._workloads: tuple[Workload, ...] = ()
        self._best_effort: frozenset[CgroupId] = frozenset()
        self._oncpu_ns: Mapping[CgroupId, int] = {}
        self._last_ns: int | None = None
        self.cut_cpu_s = 0.0
        self._clock = SufferingClock()
        self._clear()

    def _clear(self) -> None:
        self.eventful = False
        self._anew = False
        self._new_workloads: tuple[Workload, ...] | None = None
        self._writes: dict[KnobKey, Write] = {}
        self._asked: dict[str, Asked] = {}
        self._since: dict[KnobKey, HeldSince] = {}
        self._foreign: list[Foreign] = []
        self._refused: list[Outcome] = []
        self._verdicts: list[Verdict] = []
        self._evictions: list[Eviction] = []
        self._answers: list[EvictionAnswer] = []
        self._suffered: dict[tuple[str, Channel, str, bool], int] = {}
        self._slow: dict[tuple[str, SlowBecause, str], SlowTime] = {}
        self._ran_ns = self._clock.ran_ns
        self._worst: dict[tuple[str, Channel, IndicatorName], LoopReport] = {}
        self._dropped = 0

    @property
    def held(self) -> tuple[Write, ...]:
        """The knobs that the agent holds, or in observe mode would hold."""
        return tuple(
            Write(each.target, each.knob, each.original, each.value, each.reason, held=True)
            for each in self._held.values()
        )

    @property
    def asked(self) -> tuple[Asked, ...]:
        """What asked for ``held``."""
        asked = (_asked(each) for each in self._held.values())
        return tuple({each.reason: each for each in asked if each is not None}.values())

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads of the last tick."""
        return self._workloads

    def restart(self) -> None:
        """Every knob was restored, and the next plan is that of a new planner."""
        self._in_force = InForce()
        self._held.clear()
        self._granted.clear()
        self._anew = self.eventful = True

    def add(
        self,
        snapshot: Snapshot,
        plan: Plan,
        outcomes: Sequence[Outcome],
        in_force: InForce,
        workloads: tuple[Workload, ...],
        mode: Mode,
    ) -> None:
        """Take one tick; *in_force* is the record after it.

        *outcomes* are those of the actions of *plan*, none in observe mode.
        """
        if workloads is not self._workloads and workloads != self._workloads:
            self._set_workloads(workloads)
        if in_force.knobs is not self._in_force.knobs:
            self._compare(snapshot, plan, outcomes, in_force, mode)
        # In the time before, in which the last record held.
        self._take_suffering(plan, snapshot.left_out_ns)
        self._in_force = in_force
        refused = [each for each in outcomes if _lasts(each)]
        self._keep(self._refused, refused)
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
            worst=tuple(each for each in self._worst.values() if each not in plan.loops),
            suffered=tuple(Suffered(*key, time_ns) for key, time_ns in self._suffered.items()),
            slow=tuple(self._slow.values()),
            ran_ns=self._clock.ran_ns - self._ran_ns,
            causes=plan.causes,
            rungs=tuple(rung for rung in plan.rungs if rung.part > 0),
            writes=tuple(self._writes.values()),
            asked=tuple(self._asked.values()),
            since=tuple(self._since.values()),
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
        self._parents = {
            w.cgroup: w.quota_at.place
            for w in workloads
            if w.quota_at is not None and w.qos is QosClass.BE
        }
        self._set_granted()

    def _take_suffering(self, plan: Plan, left_out_ns: int) -> None:
        limited = bool(self._in_force.limited)
        before_ns = self._clock.ran_ns
        for suffers, elapsed_ns in self._clock.update(plan, left_out_ns).items():
            if elapsed_ns:
                key = *suffers, limited
                self._suffered[key] = self._suffered.get(key, 0) + elapsed_ns
        self._take_slow(plan.slow, self._clock.ran_ns - before_ns)
        for loop in plan.loops:
            if (loop.deviation or 0.0) > 0 and loop.status is IndicatorStatus.FRESH:
                place = loop.service, loop.channel, loop.indicator
                known = self._worst.get(place)
                if known is None or is_worse(loop, known):
                    self._worst[place] = loop

    def _take_slow(self, slow: Sequence[SlowService], elapsed_ns: int) -> None:
        for each in slow:
            cause = each.service, each.because, each.name
            known = self._slow.get(cause)
            if known is not None or len(self._slow) < _MOST:
                time_ns = elapsed_ns + (0 if known is None else known.time_ns)
                self._slow[cause] = SlowTime(*cause, each.evidence, time_ns)
            else:
                self._dropped += 1

    def _compare(
        self,
        snapshot: Snapshot,
        plan: Plan,
        outcomes: Sequence[Outcome],
        in_force: InForce,
        mode: Mode,
    ) -> None:
        """Take what changed in the record; knobs whose target is gone are forgotten silently."""
        before, self._held = self._held, {key_of(each): each for each in in_force.knobs}
        self._set_granted()
        for key, held in self._held.items():
            known = before.get(key)
            if known is held:
                continue
            if known is not None and known.since_ns != held.since_ns:
                self._note_foreign(known, held.original, mode)
                known = None
            if known is None:
                self._since[key] = HeldSince(held.target, held.knob, held.since_ns)
            if known is None or known.value != held.value:
                value = held.original if known is None else known.value
                self._write(key, held, value, held.value, held.reason, held=True)
        ended = {key_of(each.action) for each in outcomes if each.failure is Failure.GONE}
        gone = {key: each for key, each in before.items() if key not in self._held}
        gone = {key: each for key, each in gone.items() if key not in ended}
        if not gone:
            return
        actions = {key_of(each): each for each in plan.actions}
        foreign = [(each.action, each.foreign) for each in outcomes if each.foreign is not None]
        values = {key_of(each): each.value for each in snapshot.knobs if each.original is None}
        values |= {key_of(action): value for action, value in foreign}
        for key, held in gone.items():
            found = values.get(key)
            if found is not None and found not in (held.value, held.original):
                self._note_foreign(held, found, mode)
            elif (action := actions.get(key)) is not None:
                self._write(key, held, held.value, action.value, action.reason, held=False)
            elif plan.released or found is not None:
                reason = "paused" if plan.released else "another program restored it"
                self._write(key, held, held.value, held.original, reason, held=False)

    def _note_foreign(self, ours: HeldKnob, value: KnobValue, mode: Mode) -> None:
        self.eventful = True
        self._writes.pop(key_of(ours), None)
        if mode is Mode.ENFORCE:
            self._keep(self._foreign, [Foreign(ours.target, ours.knob, ours.value, value)])

    def _write(
        self,
        key: KnobKey,
        knob: HeldKnob,
        before: KnobValue,
        value: KnobValue,
        reason: str,
        *,
        held: bool,
    ) -> None:
        earlier = self._writes.get(key)
        before = before if earlier is None else earlier.before
        self._writes[key] = Write(knob.target, knob.knob, before, value, reason, held)
        if held and (asked := _asked(knob)) is not None:
            self._asked[reason] = asked

    def _set_granted(self) -> None:
        limited = self._best_effort.union(self._parents.values())
        self._granted = {
            cgroup: cpus
            for (cgroup, knob), held in self._held.items()
            if knob is Knob.CPU_QUOTA
            and cgroup in limited
            and (cpus := parse_quota(held.value).cpus) is not None
        }

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


def _asked(held: HeldKnob) -> Asked | None:
    if held.channel is None:
        return None
    return Asked(held.reason, held.channel, held.service, held.indicator)


def _oncpu_ns(snapshot: Snapshot, cgroups: frozenset[CgroupId]) -> Mapping[CgroupId, int]:
    return {
        sample.cgroup: sample.oncpu_ns
        for sample in snapshot.workloads
        if sample.oncpu_ns is not None and sample.cgroup in cgroups
    }


def _lasts(outcome: Outcome) -> bool:
    """Whether a write was refused for a reason that does not pass by the next tick."""
    passes = is_passing(outcome.action.knob, outcome.errno or 0)
    return outcome.failure is Failure.REFUSED and not passes
