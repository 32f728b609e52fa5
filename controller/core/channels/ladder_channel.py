# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A channel whose demand moves a ladder of knobs: cache, network, memory and io.

The last rung of the cache channel is cpu.quota, which the cpu channel writes. The first ones, cache
ways and memory bandwidth, limit all best-effort work together; the quota limits the workloads that
hurt, once they are known. So a squeeze begins with the quota alone. If the quota is at its stop or
the service suffers again, the other rungs come first. After a pause the quota alone is tried again,
ever less often while that fails. Such a trial begins with a stricter quota than it is likely to
need: the service must not pay for it.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from controller.core.channels.ladder import AT_STOP, Ladder, Rung, TickContext
from controller.core.decision import Demand, Verdict
from controller.core.limiters import SMOOTH_S, Backoff, LowPass
from controller.core.loop.channel_loops import ChannelLoops, Specs
from controller.core.loop.channel_pace import PacedLimiter
from controller.core.loop.evidence import Evidence
from controller.core.model import Channel, Knob
from controller.core.settings import IndicatorSpec, SafeState, Settings
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import Service

__all__ = ("Front", "LadderChannel", "RungTrial")

# A smoothed deviation above this for so long, or a quota at its stop, shows that a quota is not
# enough; with one of at most the other the service is well.
_BAD, _BAD_S, _WELL = 0.4, 0.4, 0.15
# So long the service may still suffer from what began the squeeze, or the quota may be at its stop.
_STOPPED_S = 8.0
# After so long without a squeeze the next one is another one.
_FORGET_S = 30.0
# The part of the quota's range with which a trial begins.
_FIRST_PART = 0.4


class Front(NamedTuple):
    """The rungs in front of the quota.

    ``knobs`` are those that can be moved now, empty if the quota cannot; ``limited``: one of them
    is; ``short``: all are at their stops, and the quota had to begin.
    """

    knobs: frozenset[Knob] = frozenset()
    limited: bool = False
    short: bool = False


@dataclass(slots=True)
class RungTrial:
    """The trial of one ladder, whose last rung is the quota.

    ``spared``: the knobs that are left free. ``demand``: the demand to set in this tick, because
    ``spared`` changed during a squeeze, else ``None``. ``report`` is the sentence of such a tick,
    else empty.
    """

    spared: frozenset[Knob] = frozenset()
    demand: float | None = None
    report: str = ""
    # The demand that the other rungs are put back with.
    _left: float = 0.0
    # Seconds: until the quota alone may be tried, without a squeeze, since ``spared`` changed, and
    # of these bad ones without a break.
    _wait_s: float = 0.0
    _free_s: float = 0.0
    _since_s: float = 0.0
    _bad_s: float = 0.0
    # Whether the service was well since ``spared`` changed, or had the time for that.
    _settled: bool = False
    _deviation: LowPass = field(default_factory=LowPass)
    # Pauses after trials, in seconds.
    _backoff: Backoff = field(default_factory=lambda: Backoff(300.0, 3600.0))

    def update(self, front: Front, applied: float, deviation: float | None, dt_s: float) -> None:
        """Take one tick of *dt_s* with the demand *applied*.

        *deviation* is the largest of the services that ask for the squeeze, or of all if none asks;
        ``None`` without a squeeze, or without data.
        """
        self.demand, self.report = None, ""
        self._wait_s -= dt_s
        if deviation is None:
            self._free_s += dt_s
            if self._free_s > _FORGET_S or not self.spared:
                self._spare(front.knobs if self._wait_s <= 0 else frozenset())
                self._left = 1.0 / (len(self.spared) + 1)
            return
        self._free_s = 0.0
        self._since_s += dt_s
        smooth = self._deviation.update(deviation, dt_s, SMOOTH_S)
        if not self.spared:
            if front.limited and self._wait_s <= 0 and (smooth <= _WELL or front.short):
                self._left, self.demand = applied, _FIRST_PART
                self._spare(front.knobs)
                self.report = f"{self._names} let go on trial: whether a quota alone protects"
            return
        stopped = applied >= AT_STOP and self._since_s > _STOPPED_S
        self._bad_s = self._bad_s + dt_s if smooth > _BAD or stopped else 0.0
        # A squeeze begins because the service suffers; that it ends takes a moment.
        self._settled = self._settled or self._since_s > _STOPPED_S or smooth <= _WELL
        if self._bad_s > _BAD_S and self._settled:
            self._put_others_first()

    def _put_others_first(self) -> None:
        if self._since_s > self._backoff.pause:
            self._backoff.reset()  # the quota alone was enough for longer than it was not tried
        self._wait_s = self._backoff.next()
        self.report = (
            f"{self._names} limited first: the service suffers with a quota alone, "
            f"tried again in {self._wait_s:.0f} s"
        )
        self.demand = self._left
        self._spare(frozenset())

    def _spare(self, knobs: frozenset[Knob]) -> None:
        self.spared = knobs
        self._since_s = self._bad_s = 0.0
        self._settled = False
        self._deviation = LowPass()

    @property
    def _names(self) -> str:
        return " and ".join(sorted(self.spared))


class LadderChannel:
    """A channel with a ladder: its loops, their evidence (the use of the resource), its rungs.

    ``limiter`` has the demand that is applied. ``verdicts``: what a trial of the rungs began with
    or showed in the last tick.
    """

    def __init__(
        self, channel: Channel, settings: Settings, rungs: list[Rung], facts: object
    ) -> None:
        """*rungs* were made from *facts*."""
        self.channel = channel
        self.facts = facts
        # The second in which the ladder was updated.
        self._updated_s: int | None = None
        # The rung of the quota, if there are others in front of it that a trial can let go.
        self._quota = next((each for each in rungs[1:] if each.knob is Knob.CPU_QUOTA), None)
        self._trial = RungTrial()
        self.loops = ChannelLoops(channel, settings)
        self.limiter = PacedLimiter(self.loops)
        self.ladder = Ladder(channel, rungs)
        self.verdicts: tuple[Verdict, ...] = ()

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; loops keep their demand."""
        if not settings.law.rungs_by_work:
            self._end_trial()
        self.loops.reconfigure(settings)

    def release(self) -> None:
        """Set the demand to 0 and release every knob at once."""
        self.limiter.jump(0.0)
        self.ladder.release()

    def step(self, specs: Specs, context: TickContext) -> None:
        """Advance all loops and move the ladder to their demand, unless it is held."""
        limiter, ladder = self.limiter, self.ladder
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
            if self.channel is Channel.MEMORY and context.tracker.counted.hits_own_limit(
                service, spec
            ):
                return replace(common, at_own_limit=True)
            if self.channel is Channel.IO:
                share = context.tracker.counted.disk_share(service, spec)
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
        if self.loops.settings.law.rungs_by_work and self._quota is not None and not context.hold:
            self._try_rungs(self._quota, context)
        tracker, index, dt_s = context.tracker, context.workload_index, context.dt_s
        choice = self.loops.bid(
            tracker, index, specs, evidence, limiter.applied, dt_s, context.hold
        )
        if not self.loops or not ladder.usable:
            # No service to protect, or no knob to move: the loops have to track a demand of 0.
            limiter.applied = 0.0
            ladder.release()
        else:
            if not context.hold:
                choice = self._move(choice, context)
            asking = context._replace(asking=self._asking(choice)) if limiter.applied else context
            limiter.applied = ladder.apply(limiter.applied, asking)
        self.loops.track(choice, limiter.applied, dt_s)
        if self.loops.safe:
            self._go_safe(context)

    def _move(self, choice: Demand, context: TickContext) -> Demand:
        """Move the demand towards *choice*, see ``PacedLimiter.move``."""
        limiter, ladder = self.limiter, self.ladder
        before, choice = limiter.applied, limiter.let_go(choice)
        if before > 0 >= limiter.applied:
            ladder.release()  # without the hold-off times of its steps
        limits = ladder.limits(limiter.applied, context.workload_index)
        # A knob with few settings is released setting by setting.
        fine = limits.release_spacing_ns < NS_PER_SEC
        rungs = len(ladder.usable)
        return limiter.move(choice, limits, context.now_ns, context.dt_s, rungs, fine)

    def _asking(self, choice: Demand) -> frozenset[str]:
        """Return the services that the demand of this tick is for; *choice* is the selected one."""
        winner = {choice.service} if choice.service and choice.wanted > 0 else frozenset()
        return frozenset(self.loops.charges) | winner

    def _is_idle(self, specs: Specs, context: TickContext, second: int) -> bool:
        """Whether there is no service, and the last step in this *second* has released all knobs.

        Most nodes have one or two channels in use, and each step of another one costs as much.
        """
        busy = specs or self.loops or self.limiter.applied or self._quota or context.resync
        return not busy and second == self._updated_s

    def _try_rungs(self, quota: Rung, context: TickContext) -> None:
        """Let the rungs in front of the *quota* go, or take them back, as their trial demands."""
        ladder, trial, applied = self.ladder, self._trial, self.limiter.applied
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
            self.limiter.jump(trial.demand)
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

    def _go_safe(self, context: TickContext) -> None:
        self.limiter.applied = 0.0
        if self.loops.settings.safe_state is SafeState.FLOOR and self.ladder.usable:
            self.ladder.apply(1.0, context)
        else:
            self.ladder.release()
