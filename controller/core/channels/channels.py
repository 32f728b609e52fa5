# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The channels of a node: made from the settings, stepped together, with what they share.

They share the routing of indicators, the use of the resources, the harm that was found, and the
quota: the last rung of the cache channel is the cpu channel's knob.
"""

from collections.abc import Mapping, Set
from dataclasses import replace
import math

from controller.core.channels.cpu_channel import CpuChannel
from controller.core.channels.divided import LinkCeilingRung, MemoryHighRung
from controller.core.channels.io_max import IoMaxRung
from controller.core.channels.ladder import MemoryLimitRung, Rung, SharedQuotaRung, TickContext
from controller.core.channels.ladder_channel import LadderChannel
from controller.core.channels.quota_grants import QuotaGrants
from controller.core.channels.stepped import CacheWaysRung, IoWeightRung, MbaRung
from controller.core.decision import Action
from controller.core.harm.harm_finder import HarmFinder, MicroProbes
from controller.core.harm.resource_usage import ResourceUsage
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.knobs.grants import RequestedLimits
from controller.core.knobs.knob_state import KnobState
from controller.core.loop.channel_loops import ChannelLoops, IndicatorRouting, Specs
from controller.core.memory import capacity_bytes
from controller.core.model import CgroupId, Channel, Knob, Mode, Snapshot
from controller.core.settings import Settings
from controller.core.workload_index import WorkloadIndex

__all__ = ("Channels",)


class Channels:
    """All channels: ``cpu``, the ``ladders`` of the others, and the ``loops`` of each.

    A channel is made again when the knobs that it can move change.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = _without_trials(settings)
        self._usage = ResourceUsage()
        self._forget_harm()
        self._requested_limits = RequestedLimits()
        self._resync = True
        self._create()

    def _forget_harm(self) -> None:
        self._harm = HarmFinder()
        self._micro_probes = MicroProbes()

    def _create(self) -> None:
        settings = self._settings
        self._routing = IndicatorRouting()
        self._shared_quota = SharedQuotaRung()
        self.cpu = CpuChannel(settings)
        self._quotas = QuotaGrants(self.cpu, self._shared_quota)
        self.ladders: tuple[LadderChannel, ...] = ()
        self._create_ladders()

    def _create_ladders(self) -> None:
        """Create the ladder of every channel whose knobs differ from those before."""
        settings = self._settings
        before = {each.channel: each for each in self.ladders}
        ladders = []
        for channel in Channel:
            if channel is not Channel.CPU:
                facts, rungs = _rungs_of(channel, settings, self._shared_quota)
                ladder = before.get(channel)
                if ladder is None or ladder.facts != facts:
                    ladder = LadderChannel(channel, settings, rungs, facts)
                ladders.append(ladder)
        self.ladders = tuple(ladders)
        self.loops: dict[Channel, ChannelLoops] = {
            Channel.CPU: self.cpu.loops,
            **{each.channel: each.loops for each in self.ladders},
        }

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; see ``Planner.reconfigure``."""
        before, settings = self._settings, _without_trials(settings)
        self._settings = settings
        self.resync()
        if not settings.law.find_harm:
            self._forget_harm()  # what is no longer updated must not share a cut
        if settings.mode is not before.mode or settings.host.cpus != before.host.cpus:
            self._create()
        else:
            self._create_ladders()
        self.cpu.loops.reconfigure(settings)
        for ladder in self.ladders:
            ladder.reconfigure(settings)

    def resync(self) -> None:
        """Compare every knob again in the next tick: what may be held has changed."""
        self._resync = True

    def release_unneeded(self, workload_index: WorkloadIndex) -> None:
        """Set the demand of channels that no service needs to 0, without a hold-off time."""
        channels: tuple[CpuChannel | LadderChannel, ...] = (self.cpu, *self.ladders)
        for channel in channels:
            if not channel.loops.is_needed(workload_index):
                channel.release()

    @property
    def safe(self) -> bool:
        """Whether no channel that has a source has had data for too long."""
        working = [loops for loops in self.loops.values() if loops and loops.working]
        return bool(working) and all(loops.safe for loops in working)

    @property
    def squeezed_for(self) -> Set[str]:
        """The services for which best-effort work is squeezed on some channel."""
        squeezing = (loops for loops in self.loops.values() if loops.demand.applied > 0)
        return {name for loops in squeezing for name in loops.charges}

    @property
    def quota_loops(self) -> ChannelLoops:
        """The loops of the channel that the quota follows: cpu or cache."""
        from_cache = self._shared_quota.part > self.cpu.limiter.applied
        return self.loops[Channel.CACHE if from_cache else Channel.CPU]

    @property
    def cache_squeeze(self) -> float:
        """The part of best-effort's page cache that is to go, from 0 to 1."""
        rungs = (rung for each in self.ladders for rung in each.ladder.rungs)
        return next((rung.part for rung in rungs if rung.knob is Knob.MEMORY_MAX), 0.0)

    def step(
        self,
        snapshot: Snapshot,
        tracker: IndicatorTracker,
        workload_index: WorkloadIndex,
        knobs: KnobState,
        dt_ns: int,
        left_out_ns: int,
        *,
        hold: bool,
        probe: bool,
        memory_shares: Mapping[CgroupId, float],
        guarded: frozenset[CgroupId],
    ) -> tuple[TickContext, Mapping[CgroupId, float]]:
        """Move all channels; return the context of this tick and the CPUs to grant by cgroup.

        *tracker* and *knobs* have taken *snapshot*, *dt_ns* after the last one, of which ticks
        were left out for *left_out_ns*. On *hold* the demands stay. *probe*: micro-probes may
        lower a grant. *memory_shares*: what workloads may have of the memory at most.
        *guarded*: the cgroups whose limit of memory the guard moves.
        """
        specs = self._routing.update(workload_index, self.loops, snapshot.time_ns)
        has_shares = bool(memory_shares or workload_index.memory_limits)
        self._update_usage(snapshot, workload_index, specs, has_shares)
        settings = self._settings
        dt_s = min(dt_ns - left_out_ns, 2 * settings.tick_ns) / 1e9
        context = TickContext(
            now_ns=snapshot.time_ns,
            dt_s=dt_s,
            resync=self._resync or not knobs.quiet,
            tracker=tracker,
            workload_index=workload_index,
            knobs=knobs,
            usage=self._usage,
            harm=self._harm,
            elapsed_s=dt_s + left_out_ns / 1e9,
            hold=hold,
            memory_shares=memory_shares,
            guarded=guarded,
        )
        if settings.law.find_harm:
            loops = self.loops[Channel.CACHE]
            self._harm.update(tracker, workload_index, loops, context.now_ns, dt_ns)
        return context, self._grants(specs, context, probe)

    def _update_usage(
        self,
        snapshot: Snapshot,
        workload_index: WorkloadIndex,
        specs: Mapping[Channel, Specs],
        has_shares: bool,
    ) -> None:
        # The use of a resource is evidence against best-effort work. It is not computed for a
        # channel that has neither a knob nor a source.
        watched = {
            each.channel: each.limiter.applied > 0
            for each in self.ladders
            if specs[each.channel] and (each.ladder.rungs or each.loops.working)
        }
        if has_shares:
            watched.setdefault(Channel.MEMORY, False)
        self._usage.update(snapshot, workload_index, watched)

    def _grants(
        self, specs: Mapping[Channel, Specs], context: TickContext, probe: bool
    ) -> Mapping[CgroupId, float]:
        if context.resync:
            self._resync = False
            self._quotas.update(context)
        for channel in self.ladders:
            channel.step(specs[channel.channel], context)
        self.cpu.step(specs[Channel.CPU], self._quotas.blocked, context)
        grants: Mapping[CgroupId, float] = self._quotas.grant(self.loops[Channel.CACHE], context)
        if self._settings.law.find_harm and probe and not context.hold:
            grants = self._probe(grants, context)
        return self._requested_limits.apply(grants, context.workload_index.cpu_limits)

    def _probe(
        self, grants: Mapping[CgroupId, float], context: TickContext
    ) -> Mapping[CgroupId, float]:
        """Return *grants* with the one that a micro-probe lowers."""
        use = context.tracker.use.cpus
        doubts = {
            cgroup: doubt
            for cgroup, doubt in self._harm.doubts(
                self.loops[Channel.CACHE], self._shared_quota.part > 0
            ).items()
            if cgroup in use
            and cgroup in context.workload_index.best_effort
            and cgroup not in self._quotas.blocked
        }
        amounts = {each: min(use[each], grants.get(each, math.inf)) for each in doubts}
        floor = self._quotas.floor_each(context.workload_index)
        limits = self._settings.law.micro_probes
        probed = self._micro_probes.update(doubts, amounts, floor, limits, context.now_ns)
        return {**grants, **probed} if probed else grants

    def explain(self, quotas: list[Action]) -> list[Action]:
        """Return *quotas*, the writes of the grants; those that no demand explains get a reason."""
        return self._micro_probes.explain(self._requested_limits.explain(quotas))


def _without_trials(settings: Settings) -> Settings:
    """Return *settings*; in observe mode no knob moves, so a trial would show nothing."""
    if settings.mode is Mode.ENFORCE:
        return settings
    return replace(settings, law=replace(settings.law, verify_squeeze=False, rungs_by_work=False))


def _rungs_of(
    channel: Channel, settings: Settings, quota: SharedQuotaRung
) -> tuple[object, list[Rung]]:
    """Return the facts of this host, and the rungs that they allow, cheapest first.

    *quota* is that of the planner.
    """
    host = settings.host
    if channel is Channel.CACHE:
        facts = host.resctrl
        return facts, [*([CacheWaysRung(facts), MbaRung(facts)] if facts else []), quota]
    if channel is Channel.NETWORK:
        return host.links, [LinkCeilingRung(host.links)] if host.links else []
    if channel is Channel.MEMORY:
        guard = settings.memory
        size = capacity_bytes(guard, host) if guard else host.memory_bytes
        rungs = [MemoryHighRung(size), *([MemoryLimitRung()] if guard else [])] if size else []
        return (size, guard is not None), rungs
    weights = [IoWeightRung()] if host.io_weight else []
    limits = [IoMaxRung(host.disks)] if host.disks else []
    return (host.disks, host.io_weight), [*weights, *limits]
