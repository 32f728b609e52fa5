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

from collections.abc import Mapping, Sequence
import math

from controller.core.control.channel_loops import ChannelLoops, Specs
from controller.core.control.core_scheduling import CookiePolicy
from controller.core.control.cpu_channel import CpuChannel
from controller.core.control.eviction_candidates import (
    causes,
    eviction_candidates,
    eviction_cases,
    known_deviation,
)
from controller.core.control.eviction_policy import EvictionHistory, EvictionPolicy
from controller.core.control.explain import DecisionLog, describe_pause
from controller.core.control.grants import GrantActions, RequestedLimits
from controller.core.control.harm_finder import HarmFinder
from controller.core.control.indicator_routing import IndicatorRouting
from controller.core.control.knob_state import KnobState
from controller.core.control.ladder import TickContext
from controller.core.control.ladder_channel import (
    LadderChannel,
    SharedQuotaRung,
    facts_for,
    rungs_of,
)
from controller.core.control.micro_probes import MicroProbes
from controller.core.control.resource_usage import ResourceUsage
from controller.core.control.sched_idle import SchedIdlePolicy
from controller.core.control.service_knobs import service_actions
from controller.core.decision import Action, Outcome, Plan, Verdict
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.knob_values import cpus_of, fine_quota_text, quota_text, write_order
from controller.core.learning.learner import SweetPointLearner
from controller.core.learning.state import LearnedIndicator
from controller.core.model import (
    SERVICE_KNOBS,
    CgroupId,
    Channel,
    EvictionAnswer,
    Knob,
    KnobValue,
    Mode,
    Pause,
    Snapshot,
    Target,
    TargetKind,
    Workload,
)
from controller.core.settings import SafeState, Settings
from controller.core.workload_index import WorkloadIndex

__all__ = ("Planner",)


class Planner:
    """Decides in every tick which knobs are written; no other component does."""

    __slots__ = (
        "_blocked",
        "_cookies",
        "_cpu",
        "_decision_log",
        "_evictions",
        "_harm",
        "_idle",
        "_knobs",
        "_ladders",
        "_last_ns",
        "_learner",
        "_loops",
        "_micro_probes",
        "_parents",
        "_pause",
        "_quotas",
        "_requested_limits",
        "_routing",
        "_settings",
        "_shared_quota",
        "_tracker",
        "_usage",
        "_workload_index",
        "_workloads",
    )

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
        self._usage = ResourceUsage()
        self._harm = HarmFinder()
        self._micro_probes = MicroProbes()
        self._knobs = KnobState()
        self._idle = SchedIdlePolicy()
        self._cookies = CookiePolicy(settings.core)
        self._decision_log = DecisionLog()
        self._quotas = GrantActions(Knob.CPU_QUOTA, cpus_of, self._quota_text)
        self._requested_limits = RequestedLimits()
        self._evictions = EvictionPolicy(settings.eviction, past_evictions or EvictionHistory())
        self._blocked: frozenset[CgroupId] | None = None
        self._parents: Mapping[CgroupId, CgroupId] = {}
        self._last_ns: int | None = None
        self._create_channels()

    def _quota_text(self, cpus: float, original: KnobValue) -> KnobValue:
        text = fine_quota_text if self._settings.law.low_floors else quota_text
        return text(cpus, original)

    def _create_channels(self) -> None:
        settings = self._settings
        self._routing = IndicatorRouting()
        self._shared_quota = SharedQuotaRung()
        self._cpu = CpuChannel(settings)
        self._ladders: tuple[LadderChannel, ...] = ()
        self._create_ladders()

    def _create_ladders(self) -> None:
        """Create the ladder of every channel whose knobs differ from those before."""
        settings = self._settings
        before = {each.channel: each for each in self._ladders}
        ladders = []
        for channel in Channel:
            if channel is not Channel.CPU:
                facts = facts_for(channel, settings.host)
                ladder = before.get(channel)
                if ladder is None or ladder.facts != facts:
                    rungs = rungs_of(channel, settings.host, self._shared_quota)
                    ladder = LadderChannel(channel, settings, rungs, facts)
                ladders.append(ladder)
        self._ladders = tuple(ladders)
        self._loops: dict[Channel, ChannelLoops] = {
            Channel.CPU: self._cpu.loops,
            **{each.channel: each.loops for each in self._ladders},
        }

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
        self._blocked = None
        if settings.mode is not before.mode:
            self._knobs.reset()
            self._tracker.reset_links()  # links are shaped only while enforcing
            self._evictions = EvictionPolicy(settings.eviction, self.past_evictions)
            self._create_channels()
        elif settings.host.cpus != before.host.cpus:
            self._create_channels()
        else:
            self._create_ladders()
        self._cpu.reconfigure(settings)
        for channel in self._ladders:
            channel.reconfigure(settings)
        self._cookies.reconfigure(settings.core)
        self._evictions.limits = settings.eviction
        self._idle.end_hold()

    def set_workloads(self, workloads: Sequence[Workload]) -> None:
        """Replace the workloads. The next step restores the knobs of workloads that are gone.

        :raises KeyError: a latency-sensitive workload names a profile that does not exist.
        """
        self._workload_index = self._indexed(workloads, self._settings)
        self._workloads = tuple(workloads)
        self._blocked = None

    def _indexed(self, workloads: Sequence[Workload], settings: Settings) -> WorkloadIndex:
        """Return the index of *workloads*, with what is learned in the profiles.

        :raises KeyError: a latency-sensitive workload names a profile that does not exist.
        """
        index = WorkloadIndex(workloads, settings.profiles, self._pause)
        return self._learner.set_workloads(index, settings.host)

    def step(self, snapshot: Snapshot, outcomes: Sequence[Outcome]) -> Plan:
        """Return the plan for *snapshot*; *outcomes* are those of the last plan's actions."""
        now_ns = snapshot.time_ns
        tick_ns = self._settings.tick_ns
        dt_ns = max(0, now_ns - self._last_ns) if self._last_ns is not None else 0
        self._last_ns = now_ns
        executed = self._settings.mode is Mode.ENFORCE
        self._knobs.update(snapshot.knobs, outcomes, executed, now_ns)
        pauses = self._set_pause(snapshot.pause)
        self._tracker.update(
            snapshot,
            self._workload_index,
            dt_ns,
            oldest_ns=2 * tick_ns,
            longest_gap_ns=self._settings.stale_ticks * tick_ns,
        )
        specs = self._routing.update(self._workload_index, self._loops, now_ns)
        # The use of a resource is evidence against best-effort work. It is not computed for a
        # channel that has neither a knob nor a source.
        watched = {
            each.channel: each.demand > 0
            for each in self._ladders
            if specs[each.channel] and (each.ladder.rungs or each.loops.working)
        }
        if self._workload_index.memory_limits:
            watched.setdefault(Channel.MEMORY, False)
        self._usage.update(snapshot, self._workload_index, watched)
        context = TickContext(
            now_ns=now_ns,
            dt_s=min(dt_ns, 2 * tick_ns) / 1e9,
            resync=self._blocked is None or not self._knobs.quiet,
            host=self._settings.host,
            tracker=self._tracker,
            workload_index=self._workload_index,
            knobs=self._knobs,
            usage=self._usage,
            harm=self._harm if self._settings.law.find_harm else None,
        )
        hold = dt_ns == 0 or dt_ns > 2 * tick_ns
        if context.harm is not None:
            loops = self._loops[Channel.CACHE]
            context.harm.update(self._tracker, self._workload_index, loops, now_ns, dt_ns)
        grants = self._step_channels(specs, context, hold)
        actions = self._actions(grants, snapshot.core_overlap_ratio, context)
        self._knobs.commit(actions)
        self._workload_index = self._learner.update(
            (each for loops in self._loops.values() for each in loops.indicators),
            self._tracker,
            self._settings.host.cpus,
            now_ns,
            hold,
        )
        return self._plan(actions, context, snapshot.evictions, pauses)

    def _set_pause(self, pause: Pause | None) -> tuple[Verdict, ...]:
        """Take the pause of this tick; return what changed, in words."""
        if pause == self._pause:
            return ()
        before = self._workload_index.paused_services
        self._pause = pause
        index = self._workload_index = self._indexed(self._workloads, self._settings)
        self._blocked = None  # every knob is compared with what may be held now
        self._idle.end_hold()
        if index.paused_services - before:
            channels: tuple[CpuChannel | LadderChannel, ...] = (self._cpu, *self._ladders)
            for channel in channels:
                if not channel.loops.is_needed(index):
                    channel.release()
            if not self._loops[Channel.CACHE].is_needed(index):
                self._cookies = CookiePolicy(self._settings.core)
        if self._released:
            self._evictions = EvictionPolicy(self._settings.eviction, self.past_evictions)
        return (Verdict(subject="pause", text=describe_pause(pause)),)

    @property
    def _released(self) -> bool:
        return self._pause is not None and self._pause.everything

    def _step_channels(
        self, specs: Mapping[Channel, Specs], context: TickContext, hold: bool
    ) -> Mapping[CgroupId, float]:
        workload_index, tracker, now_ns = self._workload_index, self._tracker, context.now_ns
        if self._blocked is None or context.resync:
            self._blocked = self._knobs.blocked(workload_index.best_effort, Knob.CPU_QUOTA, now_ns)
            self._parents = self._movable_parents(now_ns)
        blocked = self._blocked
        for channel in self._ladders:
            channel.step(specs[channel.channel], context, hold)
        self._cpu.step(
            tracker, workload_index, specs[Channel.CPU], blocked, now_ns, context.dt_s, hold
        )
        traffic = self._usage.of(Channel.CACHE).rates
        part = self._shared_quota.part
        charges = self._loops[Channel.CACHE].charges
        claims = self._harm.claims(part, charges, traffic, tracker.cpu_use)
        grants: Mapping[CgroupId, float] = self._cpu.grant(
            part, claims, tracker, workload_index, blocked, self._parents, now_ns
        )
        if context.harm is not None and not hold:
            grants = self._probe(grants, blocked, context)
        return self._requested_limits.apply(grants, workload_index.cpu_limits)

    def _movable_parents(self, now_ns: int) -> Mapping[CgroupId, CgroupId]:
        """Return the parents of best-effort workloads whose quota can be moved now."""
        if not self._settings.law.common_quota:
            return {}
        parents = self._workload_index.quota_parents
        blocked = self._knobs.blocked(parents.values(), Knob.CPU_QUOTA, now_ns)
        return {each: parent for each, parent in parents.items() if parent not in blocked}

    def _probe(
        self, grants: Mapping[CgroupId, float], blocked: frozenset[CgroupId], context: TickContext
    ) -> Mapping[CgroupId, float]:
        """Return *grants* with the one that a micro-probe lowers."""
        if self._settings.mode is not Mode.ENFORCE or self._released:
            return grants
        use = context.tracker.cpu_use
        doubts = {
            cgroup: doubt
            for cgroup, doubt in self._harm.doubts(
                self._loops[Channel.CACHE], self._shared_quota.part > 0
            ).items()
            if cgroup in use
            and cgroup in context.workload_index.best_effort
            and cgroup not in blocked
        }
        amounts = {each: min(use[each], grants.get(each, math.inf)) for each in doubts}
        floor = self._cpu.floor_each(context.workload_index)
        limits = self._settings.law.micro_probes
        probed = self._micro_probes.update(doubts, amounts, floor, limits, context.now_ns)
        return {**grants, **probed} if probed else grants

    def _plan(
        self,
        actions: tuple[Action, ...],
        context: TickContext,
        answers: Sequence[EvictionAnswer],
        pauses: tuple[Verdict, ...],
    ) -> Plan:
        active = [loops for loops in self._loops.values() if loops]
        indicators = tuple(each for loops in active for each in loops.indicators)
        ladders = [each for each in self._ladders if each.loops]
        rung = self._cpu.rung
        eviction = self._evictions.step(
            context.now_ns,
            eviction_cases(self._cpu, ladders, context),
            lambda case: eviction_candidates(case, self._cpu, context),
            self._workload_index.wholes,
            lambda *loop: known_deviation(self._loops.values(), *loop),
            answers,
        )
        return Plan(
            time_ns=context.now_ns,
            actions=actions,
            demands=(self._cpu.loops.demand, *(each.loops.demand for each in ladders)),
            loops=tuple(report for loops in active for report in loops.reports),
            indicators=indicators,
            off=tuple(each for loops in active for each in loops.off),
            verdicts=(
                *pauses,
                *self._decision_log.update(self._cpu, ladders, context, self._workloads),
                *(verdict for loops in active for verdict in loops.verdicts),
                *self._cookies.verdicts,
                *self._evictions.verdicts,
                *self._knobs.reports,
                *self._learner.verdicts,
            ),
            quota_ceiling_cpus=rung.ceiling.amount,
            quota_granted_cpus=rung.total,
            safe=self._safe,
            eviction=eviction,
            causes=causes(active, self._cpu, context),
            released=self._released,
            rungs=tuple(report for each in ladders for report in each.ladder.reports()),
            learned=self._learner.reports,
        )

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

    @property
    def _safe(self) -> bool:
        working = [loops for loops in self._loops.values() if loops and loops.working]
        return bool(working) and all(loops.safe for loops in working)

    def _actions(
        self, grants: Mapping[CgroupId, float], overlap: float | None, context: TickContext
    ) -> tuple[Action, ...]:
        if self._released:
            # Nothing else may act: the safe state moves knobs too.
            return tuple(self._restore_ineligible(context.now_ns)) if context.resync else ()
        quota_loops = self._loops[Channel.CPU]
        if self._shared_quota.part > self._cpu.demand:
            quota_loops = self._loops[Channel.CACHE]
        quotas = self._quotas.actions(
            grants,
            self._cpu.rung.floor_each,
            self._workload_index.quota_targets,
            self._knobs,
            self._decision_log.reason(quota_loops),
            context.resync,
            context.now_ns,
        )
        quotas = self._micro_probes.explain(self._requested_limits.explain(quotas))
        actions = self._idle_actions(context)
        cache = self._loops[Channel.CACHE]
        actions += self._cookies.actions(cache, overlap, self._idle.on, context)
        if context.resync:
            quotas.extend(self._restore_ineligible(context.now_ns))
            actions.extend(service_actions(self._workload_index, self._knobs, context.now_ns))
        actions.extend(sorted(quotas, key=write_order))
        for channel in self._ladders:
            actions.extend(
                channel.ladder.actions(context, self._decision_log.reason(channel.loops))
            )
        return tuple(actions)

    def _idle_actions(self, context: TickContext) -> list[Action]:
        common = (self._workload_index, self._knobs, context.resync, context.now_ns)
        if self._safe:
            restore = self._settings.safe_state is SafeState.RESTORE
            return self._idle.safe_actions(restore, *common)
        return self._idle.actions(self._workload_index.profiles, *common)

    def _restore_ineligible(self, now_ns: int) -> list[Action]:
        """Restore the knobs that are held on targets on which the agent may not hold them now."""
        paused = self._workload_index.paused
        actions = []
        for target, knob in self._knobs.held():
            if not self._is_eligible(target, knob):
                is_paused = self._released or (target.scope, target.id) in paused
                text = "paused" if is_paused else "no longer a best-effort workload"
                action = self._knobs.restore(target.scope, target.id, knob, text, now_ns)
                if action is not None:
                    actions.append(action)
        return actions

    def _is_eligible(self, target: Target, knob: Knob) -> bool:
        """Whether the agent may hold *knob* on *target*."""
        if self._released:
            return False
        if target.kind is not TargetKind.CGROUP:
            return True
        cgroup = CgroupId(target.scope, target.id)
        if knob is Knob.SCHED_IDLE:
            return cgroup in self._workload_index.idle_targets
        if knob is Knob.CPU_QUOTA and cgroup in self._workload_index.quota_targets:
            return True
        return cgroup in self._workload_index.best_effort or (
            knob in SERVICE_KNOBS and cgroup in self._workload_index.sensitive
        )
