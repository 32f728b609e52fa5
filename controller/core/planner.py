# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The planner: from snapshots to plans, which hold the writes, their reasons and reports.

The planner is a pure function of the sequence of its inputs. It uses no clock and no file, and no
result depends on the order of hashing. The same calls in the same order give equal plans.

Requirements on the caller: ``Snapshot.knobs`` holds the last known readings in every tick, with
the outcomes of writes folded in, and ``outcomes`` are those of the actions of the last plan. A
knob without a reading is not moved.

In observe mode nothing is written and there are no outcomes. The planner continues as if every
action had been applied, so that a plan contains every change once. The measurements do not react
to these actions, so a loop that squeezes ends at full demand. When the mode changes, the planner
discards the assumed values and starts from the readings and from demand zero.

A pause (``Snapshot.pause``) takes effect in its first tick: the knobs of what it covers are
restored then, without hold-off times, and are not written until it ends. Indicators and loops go
on; a loop of a paused service tracks the demand of the others.
"""

from collections.abc import Sequence

from controller.core.channels.channels import Channels
from controller.core.channels.ladder import TickContext
from controller.core.decision import Action, Eviction, Outcome, Plan, Verdict
from controller.core.eviction.budget import EvictionBudget, EvictionHistory
from controller.core.eviction.causes import (
    causes,
    eviction_candidates,
    eviction_cases,
    known_deviation,
)
from controller.core.eviction.policy import EvictionPolicy
from controller.core.eviction.shortage import ShortageEvictions, memory_candidates
from controller.core.explain import DecisionLog, describe_pause, reason_of
from controller.core.harm.cut import LEAST_CPUS
from controller.core.in_force import InForce
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.knobs.grants import OWN_LIMIT
from controller.core.knobs.knob_state import KnobState
from controller.core.learning.learner import SweetPointLearner
from controller.core.learning.state import LearnedIndicator
from controller.core.looks import LimitTable, Quiet, TickReason, strain_in_plan
from controller.core.memory import MemoryGuardian
from controller.core.model import Channel, Mode, Pause, Snapshot, Workload
from controller.core.settings import Settings
from controller.core.slow_services import SlowServices
from controller.core.workload_index import WorkloadIndex
from controller.core.writes.actions import PlanActions, isolation_actions

__all__ = ("Planner",)

# The next tick after one in which best-effort work was asleep comes so many ticks later: work that
# wakes up is seen up to 340 ms later with ticks of 200 ms. 200 sleeping workloads cost 0.7 % of a
# core (0.9 to 1.0 with 1.8 ticks, docs/MEASUREMENTS.md).
_CALM_TICKS = 2.7


class Planner:
    """Decides in every tick which knobs are written; no other component does."""

    def __init__(
        self,
        settings: Settings,
        workloads: Sequence[Workload],
        past_evictions: EvictionHistory | None = None,
        learned: Sequence[LearnedIndicator] = (),
    ) -> None:
        """Create a planner; *past_evictions* and *learned* are those of one that it replaces.

        :raises KeyError: a latency-sensitive workload names a profile that does not exist.
        """
        self._settings = settings
        self._workloads = tuple(workloads)
        self._pause: Pause | None = None
        self._learner = SweetPointLearner(learned)
        self._workload_index = self._indexed(self._workloads, settings)
        self._tracker = IndicatorTracker()
        self._knobs = KnobState()
        self._channels = Channels(settings)
        self._actions = PlanActions(settings)
        self._memory = MemoryGuardian()
        self._decision_log = DecisionLog()
        self._slow = SlowServices()
        past = past_evictions or EvictionHistory()
        self._evictions = EvictionPolicy(EvictionBudget(settings.eviction, past))
        self._shortage = ShortageEvictions(past)
        self._last_ns: int | None = None
        self._limits = LimitTable()
        self._next_ticks = 1.0

    def reconfigure(self, settings: Settings, workloads: Sequence[Workload] | None = None) -> None:
        """Replace the settings without a bump: loops and knobs keep their state.

        *workloads*, if given, are replaced in the same step, because settings and workloads may
        need each other. A channel whose set of knobs changed starts from demand zero, and so do all
        channels when the mode or the number of CPUs changed.

        :raises KeyError: a profile that is in use is missing; the old settings stay.
        """
        workloads = self._workloads if workloads is None else tuple(workloads)
        workload_index = self._indexed(workloads, settings)
        before, self._settings = self._settings, settings
        self._workloads = workloads
        self._workload_index = workload_index
        if settings.mode is not before.mode:
            self._knobs.reset()
            self._tracker.reset_links()  # links are shaped only while enforcing
            self._evictions = EvictionPolicy(EvictionBudget(settings.eviction, self.past_evictions))
        self._channels.reconfigure(settings)
        self._actions.reconfigure(settings)
        self._evictions.budget.limits = settings.eviction

    def set_workloads(self, workloads: Sequence[Workload]) -> None:
        """Replace the workloads. The next step restores the knobs of workloads that are gone.

        :raises KeyError: a latency-sensitive workload names a profile that does not exist.
        """
        self._workload_index = self._indexed(workloads, self._settings)
        self._workloads = tuple(workloads)
        self._channels.resync()

    def _indexed(self, workloads: Sequence[Workload], settings: Settings) -> WorkloadIndex:
        """Return the index of *workloads*, with what is learned in the profiles.

        :raises KeyError: a latency-sensitive workload names a profile that does not exist.
        """
        index = WorkloadIndex(workloads, settings.profiles, self._pause)
        return self._learner.set_workloads(index, settings.host, settings.law.margin_by_scatter)

    def step(self, snapshot: Snapshot, outcomes: Sequence[Outcome]) -> Plan:
        """Return the plan for *snapshot*; *outcomes* are those of the last plan's actions."""
        now_ns = snapshot.time_ns
        tick_ns = self._settings.tick_ns
        dt_ns = max(0, now_ns - self._last_ns) if self._last_ns is not None else 0
        left_out_ns = min(dt_ns, snapshot.left_out_ns)
        self._last_ns = now_ns
        executed = self._settings.mode is Mode.ENFORCE
        self._knobs.update(snapshot.knobs, outcomes, executed, now_ns)
        pauses = self._set_pause(snapshot.pause)
        self._tracker.update(
            snapshot,
            self._workload_index,
            dt_ns,
            oldest_ns=2 * tick_ns,
            longest_gap_ns=self._settings.stale_ticks * tick_ns + left_out_ns,
        )
        # More than one tick too late. Ticks that were left out are no gap.
        hold = dt_ns == 0 or dt_ns - left_out_ns > (self._next_ticks + 1) * tick_ns
        self._memory.update(snapshot.memory, self._settings, self._workload_index, now_ns)
        context, grants = self._channels.step(
            snapshot,
            self._tracker,
            self._workload_index,
            self._knobs,
            dt_ns,
            left_out_ns,
            hold=hold,
            probe=executed and not self._released,
            memory_shares=self._memory.shares,
            guarded=self._memory.guarded,
        )
        if self._released:
            actions = self._actions.build_released(context)
        else:
            overlap, part = snapshot.core_overlap_ratio, self._channels.cache_squeeze
            reason = reason_of(self._channels.loops[Channel.MEMORY]) if part > 0 else ""
            actions = (
                *self._actions.build(self._channels, grants, overlap, context),
                *self._memory.actions(self._knobs, context.resync, now_ns, part, reason),
                *isolation_actions(self._workload_index, snapshot.shared_cpus, self._knobs, now_ns),
            )
        self._workload_index = self._learner.update(
            (each for loops in self._channels.loops.values() for each in loops.indicators),
            self._tracker,
            self._settings.host.cpus,
            now_ns,
            hold,
            lambda: self._channels.squeezed_for if executed else frozenset(),
        )
        self._next_ticks = _CALM_TICKS if self._is_calm else 1.0
        plan = self._plan(actions, context, snapshot, pauses)
        why = (self._channels.quota_loops, *(each.loops for each in self._channels.ladders))
        demands = {reason_of(loops): loops.demand for loops in why} if actions else {}
        self._knobs.commit(actions, demands, released=plan.released)
        return plan

    def settle(self, outcomes: Sequence[Outcome]) -> InForce:
        """Return what is in force after the last plan, of whose actions *outcomes* are.

        The next ``step`` does this too, with the same outcomes; what comes second has no effect.
        """
        self._knobs.settle(outcomes)
        return self._knobs.in_force(self._workload_index)

    def _set_pause(self, pause: Pause | None) -> tuple[Verdict, ...]:
        """Take the pause of this tick; return what changed, in words."""
        if pause == self._pause:
            return ()
        before = self._workload_index.paused_services
        self._pause = pause
        index = self._workload_index = self._indexed(self._workloads, self._settings)
        self._channels.resync()
        self._actions.end_hold()
        if index.paused_services - before:
            self._channels.release_unneeded(index)
            if not self._channels.loops[Channel.CACHE].is_needed(index):
                self._actions.forget_cookies()
        if self._released:
            self._evictions = EvictionPolicy(
                EvictionBudget(self._settings.eviction, self.past_evictions)
            )
        return (Verdict(subject="pause", text=describe_pause(pause)),)

    @property
    def _released(self) -> bool:
        return self._pause is not None and self._pause.everything

    def _plan(
        self,
        actions: tuple[Action, ...],
        context: TickContext,
        snapshot: Snapshot,
        pauses: tuple[Verdict, ...],
    ) -> Plan:
        channels = self._channels
        in_force = self._knobs.in_force(context.workload_index)
        cpu, active = channels.cpu, [loops for loops in channels.loops.values() if loops]
        indicators = tuple(each for loops in active for each in loops.indicators)
        ladders = [each for each in channels.ladders if each.loops]
        found = causes(active, context)
        self._slow.update(channels, found, context)
        for_memory = self._evict_for_memory(snapshot)
        # Also in a tick with another eviction, because the answers come once.
        for_service = self._evictions.step(
            context.now_ns,
            eviction_cases(cpu, ladders, context),
            lambda case: eviction_candidates(case, context),
            self._workload_index.wholes,
            lambda *loop: known_deviation(channels.loops.values(), *loop),
            snapshot.evictions,
            may_evict=for_memory is None,
        )
        return Plan(
            time_ns=context.now_ns,
            actions=actions,
            demands=(cpu.loops.demand, *(each.loops.demand for each in ladders)),
            loops=tuple(report for loops in active for report in loops.reports),
            indicators=indicators,
            off=tuple(each for loops in active for each in loops.off),
            verdicts=(
                *pauses,
                *self._decision_log.update(
                    *(cpu, ladders, context, in_force, actions, found),
                    executed=self._settings.mode is Mode.ENFORCE,
                ),
                *(verdict for loops in active for verdict in loops.verdicts),
                *(verdict for each in self._channels.ladders for verdict in each.verdicts),
                *self._slow.verdicts,
                *self._actions.verdicts,
                *self._evictions.verdicts,
                *self._shortage.verdicts,
                *self._memory.verdicts,
                *self._knobs.reports,
                *self._learner.verdicts,
            ),
            quota_ceiling_cpus=cpu.rung.ceiling.amount,
            quota_granted_cpus=cpu.rung.total,
            safe=channels.safe,
            eviction=for_memory or for_service,
            causes=found,
            released=self._released,
            rungs=tuple(report for each in ladders for report in each.ladder.reports()),
            learned=self._learner.reports,
            memory=self._memory.report,
            slow=self._slow.found,
        )

    def quiet(self, plan: Plan, in_force: InForce) -> Quiet:
        """Return when the tick after *plan*, the last one, may be left out.

        *in_force* is what ``settle`` returned after it.
        """
        strain = strain_in_plan(plan.loops)
        if plan.actions or self._is_active or _is_limited(in_force):
            return Quiet(TickReason.ACTIVE, strain=strain)
        if self._memory.is_near:
            return Quiet(TickReason.MEMORY, strain=strain)
        return self._limits.update(self._workload_index, plan.loops, strain)

    @property
    def _is_active(self) -> bool:
        """Whether a service suffers, something is squeezed or tried, or a knob changed."""
        if self._evictions.in_progress or not self._knobs.quiet:
            return True
        return any(
            loops.demand.applied > 0
            or loops.demand.wanted > 0
            or loops.most is not None
            or loops.suffering
            for loops in self._channels.loops.values()
        )

    def _evict_for_memory(self, snapshot: Snapshot) -> Eviction | None:
        sample, index = snapshot.memory, self._workload_index
        return self._shortage.step(
            snapshot.time_ns,
            None if self._released else self._memory.report,
            lambda: memory_candidates(() if sample is None else sample.workloads, index),
            index.wholes,
            snapshot.evictions,
            self._evictions.budget,
        )

    @property
    def period_ns(self) -> int:
        """How long after the last tick or look the next one is due.

        It comes later while best-effort work hardly runs and no channel asks for a squeeze; never
        where the work is not measured.
        """
        return round(self._next_ticks * self._settings.tick_ns)

    @property
    def _is_calm(self) -> bool:
        if not self._tracker.probe_alive:
            return False
        demands = (loops.demand for loops in self._channels.loops.values())
        if any(each.applied > 0 or each.wanted > 0 for each in demands):
            return False
        index = self._workload_index
        use = sum(
            cpus
            for cgroup, cpus in self._tracker.active.items()
            if cgroup in index.best_effort or cgroup in index.paused
        )
        return use < LEAST_CPUS

    @property
    def learned(self) -> tuple[LearnedIndicator, ...]:
        """What is learned about the services, for the planner that replaces this one."""
        return self._learner.learned

    @property
    def neighbours(self) -> tuple[str, ...]:
        """What disturbed the node in the last tick, if sweet points are learned; else nothing."""
        return self._learner.neighbours

    @property
    def past_evictions(self) -> EvictionHistory:
        """The past evictions, for the planner that replaces this one."""
        return self._evictions.history


def _is_limited(in_force: InForce) -> bool:
    """Whether best-effort work is limited by more than what it requested itself."""
    return any(knob.reason != OWN_LIMIT for limited in in_force.limited for knob in limited.knobs)
