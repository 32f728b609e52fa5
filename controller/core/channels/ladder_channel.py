# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A channel whose demand moves a ladder of knobs: cache, network, memory and io.

The last rung of the cache channel is cpu.quota, which the cpu channel writes.
"""

from dataclasses import replace
from functools import cache

from controller.core.channels.divided import IoMaxRung, LinkCeilingRung, MemoryHighRung
from controller.core.channels.ladder import Ladder, Rung, TickContext
from controller.core.channels.rung_trial import Front, RungTrial
from controller.core.channels.stepped import CacheWaysRung, IoWeightRung, MbaRung
from controller.core.decision import Verdict
from controller.core.loop.channel_loops import ChannelLoops, Specs
from controller.core.loop.evidence import Evidence
from controller.core.loop.selector import Choice
from controller.core.model import Channel, Knob
from controller.core.pace.channel_pace import PacedLimiter
from controller.core.settings import IndicatorSpec, SafeState, Settings
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import Service

__all__ = ("LadderChannel", "MemoryLimitRung", "SharedQuotaRung", "rungs_of")


class SharedQuotaRung(Rung):
    """The part of the quota's range that the cache channel demands; the cpu channel grants it."""

    knob = Knob.CPU_QUOTA

    def usable(self, context: TickContext) -> bool:
        """Return whether there is a workload whose quota can be moved now."""
        knobs, now_ns = context.knobs, context.now_ns
        return any(
            knobs.is_movable(each, self.knob, now_ns) for each in context.workload_index.best_effort
        )

    def describe(self) -> str:
        """Return the part of the quota's range in a few words."""
        return f"quota {self.part:.0%} of the way to its floor" if self.part else "no quota"


class MemoryLimitRung(Rung):
    """Asks for less page cache of best-effort work; ``MemoryGuardian`` writes the limits.

    v1 has no limit that slows down, so the guard's is lowered towards what best-effort work needs:
    it keeps less page cache, and the kernel drops the pages of others less often.
    """

    knob = Knob.MEMORY_MAX

    def usable(self, context: TickContext) -> bool:
        """Return whether the guard has a limit of v1 that can be moved now."""
        return any(
            target.hierarchy != "v2" and context.knobs.is_movable(target, self.knob, context.now_ns)
            for target in context.guarded
        )

    def describe(self) -> str:
        """Return the part of the page cache that goes in a few words."""
        return f"page cache limited by {self.part:.0%}" if self.part else "page cache not limited"


class LadderChannel:
    """A channel with a ladder: its loops, their evidence (the use of the resource), its rungs.

    ``verdicts``: what a trial of the rungs began with or showed in the last tick.
    """

    def __init__(
        self, channel: Channel, settings: Settings, rungs: list[Rung], facts: object
    ) -> None:
        """*rungs* were made from *facts*."""
        self.channel = channel
        self.facts = facts
        # The second in which the ladder was updated.
        self._updated_s: int | None = None
        self._settings = settings
        # The rung of the quota, if there are others in front of it that a trial can let go.
        self._quota = next((each for each in rungs[1:] if each.knob is Knob.CPU_QUOTA), None)
        self._trial = RungTrial()
        self.loops = ChannelLoops(channel, settings)
        self._limiter = PacedLimiter(self.loops)
        self.ladder = Ladder(channel, rungs)
        self.verdicts: tuple[Verdict, ...] = ()

    @property
    def demand(self) -> float:
        """The demand that is applied."""
        return self._limiter.applied

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; loops keep their demand."""
        self._settings = settings
        if not settings.law.rungs_by_work:
            self._end_trial()
        self.loops.reconfigure(settings)

    def release(self) -> None:
        """Set the demand to 0 and release every knob at once."""
        self._limiter.jump(0.0)
        self.ladder.release()

    def step(self, specs: Specs, context: TickContext, hold: bool) -> None:
        """Advance all loops and move the ladder to their demand; on *hold* the demand stays."""
        limiter, ladder = self._limiter, self.ladder
        self.verdicts = ()
        second = context.now_ns // NS_PER_SEC
        if self._is_idle(specs, context, second):
            return

        @cache
        def common_evidence() -> Evidence:
            # The same for all services; the computation reads the use of every workload.
            tracker, index = context.tracker, context.workload_index
            return Evidence(be_share=context.usage.share(self.channel, tracker, index))

        def evidence(service: Service, spec: IndicatorSpec) -> Evidence:
            common = common_evidence()
            if self.channel is Channel.MEMORY and context.tracker.hits_own_limit(service, spec):
                return replace(common, at_own_limit=True)
            if self.channel is Channel.IO:
                share = context.tracker.disk_share(service, spec)
                return common if share is None else Evidence(be_share=share, is_wait=True)
            if self.channel is not Channel.CACHE:
                return common
            excess = self.loops.of(service.name).log_excess() or 0.0
            found = context.harm.share(service.name, excess)
            if found is None:
                return common
            return replace(common, be_share=max(found, common.be_share or 0.0))

        if context.resync or second != self._updated_s or not ladder.usable:
            # Once a second: the update reads the knobs of every workload.
            self._updated_s = second
            ladder.update(context)
        rescaled = ladder.rescale(limiter.applied, context)
        if rescaled != limiter.applied:
            limiter.jump(rescaled)
        if self._settings.law.rungs_by_work and self._quota is not None and not hold:
            self._try_rungs(self._quota, context)
        choice = self.loops.bid(
            context.tracker,
            context.workload_index,
            specs,
            evidence,
            limiter.applied,
            context.dt_s,
            hold,
        )
        if not self.loops or not ladder.usable:
            # No service to protect, or no knob to move: the loops have to track a demand of 0.
            limiter.applied = 0.0
            ladder.release()
        else:
            if not hold:
                choice = self._let_go(choice)
                limits = ladder.limits(limiter.applied, context.workload_index)
                choice = limiter.move(
                    choice,
                    limits,
                    self._settings.law,
                    context.now_ns,
                    context.dt_s,
                    len(ladder.usable),
                    # A knob with few settings is released setting by setting.
                    fine=limits.release_spacing_ns < NS_PER_SEC,
                )
            limiter.applied = ladder.apply(limiter.applied, context)
        self.loops.track(choice, limiter.applied, context.dt_s)
        if self.loops.safe:
            self._go_safe(context)

    def _is_idle(self, specs: Specs, context: TickContext, second: int) -> bool:
        """Whether there is no service, and the last step in this *second* has released all knobs.

        Most nodes have one or two channels in use, and each step of another one costs as much.
        """
        busy = specs or self.loops or self._limiter.applied or self._quota or context.resync
        return not busy and second == self._updated_s

    def _try_rungs(self, quota: Rung, context: TickContext) -> None:
        """Let the rungs in front of the *quota* go, or take them back, as their trial demands."""
        ladder, trial, applied = self.ladder, self._trial, self._limiter.applied
        if ladder.spared and not ladder.usable:  # the quota cannot be moved any more
            self._end_trial()
            ladder.update(context)
            return
        trial.update(
            self._front(quota, context),
            applied,
            self.loops.excess if applied > 0 else None,
            context.elapsed_s,
        )
        if trial.report:
            self.verdicts = (Verdict(subject=self.channel, text=trial.report),)
        if trial.spared == ladder.spared:
            return
        ladder.spared = trial.spared
        ladder.update(context)
        if trial.demand is not None:
            self._limiter.jump(trial.demand)
            if trial.spared:
                # It was learned while the other rungs held the culprits down.
                context.harm.forget_certainty()

    def _front(self, quota: Rung, context: TickContext) -> Front:
        if not quota.usable(context):
            return Front()
        others = [each for each in self.ladder.rungs if each is not quota and each.usable(context)]
        return Front(
            frozenset(each.knob for each in others),
            limited=any(each.part > 0 for each in others),
            short=quota.part > 0 and all(each.part >= 1 for each in others),
        )

    def _end_trial(self) -> None:
        self._trial = RungTrial()
        self.ladder.spared = frozenset()

    def _let_go(self, choice: Choice) -> Choice:
        before = self._limiter.applied
        choice = self._limiter.let_go(choice)
        if before > 0 and self._limiter.applied <= 0:
            self.ladder.release()  # without the hold-off times of its steps
        return choice

    def _go_safe(self, context: TickContext) -> None:
        self._limiter.applied = 0.0
        if self._settings.safe_state is SafeState.FLOOR and self.ladder.usable:
            self.ladder.apply(1.0, context)
        else:
            self.ladder.release()


def rungs_of(
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
        size, guard = host.memory_bytes, settings.memory is not None
        rungs = [MemoryHighRung(size), *([MemoryLimitRung()] if guard else [])] if size else []
        return (size, guard), rungs
    weights = [IoWeightRung()] if host.io_weight else []
    limits = [IoMaxRung(host.disks)] if host.disks else []
    return (host.disks, host.io_weight), [*weights, *limits]
