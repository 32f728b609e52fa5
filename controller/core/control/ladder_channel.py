# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A channel whose demand moves a ladder of knobs: cache, network, memory and io.

The last rung of the cache channel: the quota, which belongs to the cpu channel.
"""

from functools import cache

from controller.core.control.channel_loops import ChannelLoops, Specs
from controller.core.control.evidence import Evidence
from controller.core.control.ladder import Ladder, Rung, TickContext
from controller.core.control.limiters import RateLimiter
from controller.core.control.rungs.allocated import IoMaxRung, MemoryHighRung
from controller.core.control.rungs.link_ceiling import LinkCeilingRung
from controller.core.control.rungs.stepped import CacheWaysRung, IoWeightRung, MbaRung
from controller.core.decision import Action
from controller.core.model import Channel, Knob
from controller.core.settings import (
    DiskFacts,
    HostFacts,
    IndicatorSpec,
    KnobLimits,
    LinkFacts,
    ResctrlFacts,
    SafeState,
    Settings,
)
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import Service

__all__ = (
    "LadderChannel",
    "SharedQuotaRung",
    "facts_for",
    "rungs_of",
)


class SharedQuotaRung:
    """Remembers how much of the quota's range is asked for; the cpu channel grants it."""

    def __init__(self) -> None:
        self.knob = Knob.CPU_QUOTA
        self.part = 0.0

    def usable(self, context: TickContext) -> bool:
        """Return whether there is a workload that can be limited."""
        knobs, now_ns = context.knobs, context.now_ns
        return any(
            knobs.is_movable(each, self.knob, now_ns) for each in context.workload_index.best_effort
        )

    def rescale(self, part: float, limits: KnobLimits, context: TickContext) -> float:
        """Return *part*: the scale of this rung never changes."""
        return part

    def set_part(self, part: float, limits: KnobLimits, context: TickContext) -> float | None:
        """Take *part*; the quota can take any."""
        self.part = part
        return part if part > 0 else None

    def actions(self, context: TickContext, reason: str) -> list[Action]:
        """Return nothing: the quota's writes are the cpu channel's."""
        return []

    def release(self) -> None:
        """Ask for nothing."""
        self.part = 0.0

    def describe(self) -> str:
        """Return how far the quota is asked to go."""
        return f"{self.part:.0%} of the way to the quota's floor" if self.part else "no quota"


Facts = ResctrlFacts | tuple[LinkFacts, ...] | tuple[DiskFacts, ...] | int | None


class LadderChannel:
    """Loops, evidence by the use of the resource, and a ladder."""

    __slots__ = (
        "_cpus",
        "_looked_s",
        "_safe_state",
        "_slew",
        "channel",
        "facts",
        "ladder",
        "loops",
    )

    def __init__(
        self, channel: Channel, settings: Settings, rungs: list[Rung], facts: Facts
    ) -> None:
        """*facts* are those of the host that *rungs* were made for."""
        self.channel = channel
        self.facts = facts
        self._cpus = settings.host.cpus
        self._looked_s: int | None = None
        self._safe_state = settings.safe_state
        self._slew = RateLimiter()
        self.loops = ChannelLoops(channel, settings)
        self.ladder = Ladder(channel, rungs)

    @property
    def demand(self) -> float:
        """The demand that is applied."""
        return self._slew.applied

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; loops keep their demand."""
        self._safe_state = settings.safe_state
        self.loops.reconfigure(settings)

    def step(self, specs: Specs, context: TickContext, hold: bool) -> None:
        """Advance all loops and move the ladder to what they ask for."""

        @cache  # the same for every service; it looks at every workload
        def suspects() -> Evidence:
            return Evidence(
                be_share=context.usage.share(self.channel, context.tracker, context.workload_index),
                throttled_ns=None,
                inflicted_cpus=0.0,
                steal_cpus=None,
                cpus=self._cpus,
            )

        def evidence(service: Service, spec: IndicatorSpec) -> Evidence:
            return suspects()

        slew, ladder = self._slew, self.ladder
        second = context.now_ns // NS_PER_SEC
        if context.resync or second != self._looked_s or not ladder.usable:
            # Not in every tick: it looks at every workload.
            self._looked_s = second
            ladder.update(context)
        rescaled = ladder.rescale(slew.applied, context)
        if rescaled != slew.applied:
            self.loops.shift(rescaled - slew.applied)
            slew.set(rescaled)
        choice = self.loops.bid(
            context.tracker,
            context.workload_index,
            specs,
            evidence,
            slew.applied,
            context.dt_s,
            hold,
        )
        if not self.loops or not ladder.usable:
            # Nobody to protect, or nothing that could be applied, which the loops must know.
            slew.set(0.0)
            ladder.release()
        else:
            if not hold:
                limits = ladder.limits(slew.applied, context.workload_index)
                slew.limit(choice.wanted, limits, context.now_ns, context.dt_s)
            slew.set(ladder.apply(slew.applied, context))
        self.loops.track(choice, slew.applied, context.dt_s)
        if self.loops.safe:
            self._go_safe(context)

    def _go_safe(self, context: TickContext) -> None:
        self._slew.set(0.0)
        if self._safe_state is SafeState.FLOOR and self.ladder.usable:
            self.ladder.apply(1.0, context)
        else:
            self.ladder.release()


def facts_for(channel: Channel, host: HostFacts) -> Facts:
    """Return what the rungs of a channel depend on."""
    if channel is Channel.CACHE:
        return host.resctrl
    if channel is Channel.NETWORK:
        return host.links
    return host.memory_bytes if channel is Channel.MEMORY else host.disks


def rungs_of(channel: Channel, host: HostFacts, quota: SharedQuotaRung) -> list[Rung]:
    """Return the rungs that this host's facts allow, cheapest first; *quota* is cpu's as well."""
    if channel is Channel.CACHE:
        return [*([CacheWaysRung(), MbaRung()] if host.resctrl else []), quota]
    if channel is Channel.NETWORK:
        return [LinkCeilingRung(host.links)] if host.links else []
    if channel is Channel.MEMORY:
        return [MemoryHighRung(host.memory_bytes)] if host.memory_bytes else []
    return [IoWeightRung(), *([IoMaxRung(host.disks)] if host.disks else [])]
