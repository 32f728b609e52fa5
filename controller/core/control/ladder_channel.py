# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A channel whose demand moves a ladder of knobs: cache, network, memory and io.

The last rung of the cache channel: the quota, which belongs to the cpu channel.
"""

from functools import cache

from controller.core.control.channel_loops import Loops, Specs
from controller.core.control.evidence import Evidence
from controller.core.control.ladder import Ladder, Rung, Scene
from controller.core.control.limiters import Slew
from controller.core.control.rungs.allocated import DiskRung, MemoryRung
from controller.core.control.rungs.link_ceiling import LinkRung
from controller.core.control.rungs.stepped import MbaRung, WaysRung, WeightRung
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
    "QuotaPart",
    "facts_for",
    "rungs_of",
)


class QuotaPart:
    """Remembers how much of the quota's range is asked for; the cpu channel grants it."""

    def __init__(self) -> None:
        self.knob = Knob.CPU_QUOTA
        self.part = 0.0

    def usable(self, scene: Scene) -> bool:
        """Return whether there is a workload that can be limited."""
        book, now_ns = scene.book, scene.now_ns
        return any(book.is_movable(each, self.knob, now_ns) for each in scene.roster.best_effort)

    def rescale(self, part: float, limits: KnobLimits, scene: Scene) -> float:
        """Return *part*: the scale of this rung never changes."""
        return part

    def settle(self, part: float, limits: KnobLimits, scene: Scene) -> float | None:
        """Take *part*; the quota can take any."""
        self.part = part
        return part if part > 0 else None

    def actions(self, scene: Scene, reason: str) -> list[Action]:
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
        self._slew = Slew()
        self.loops = Loops(channel, settings)
        self.ladder = Ladder(channel, rungs)

    @property
    def demand(self) -> float:
        """The demand that is applied."""
        return self._slew.applied

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings; loops keep their demand."""
        self._safe_state = settings.safe_state
        self.loops.reconfigure(settings)

    def step(self, specs: Specs, scene: Scene, hold: bool) -> None:
        """Advance all loops and move the ladder to what they ask for."""

        @cache  # the same for every service; it looks at every workload
        def suspects() -> Evidence:
            return Evidence(
                be_share=scene.usage.share(self.channel, scene.senses, scene.roster),
                throttled_ns=None,
                inflicted_cpus=0.0,
                steal_cpus=None,
                cpus=self._cpus,
            )

        def evidence(service: Service, spec: IndicatorSpec) -> Evidence:
            return suspects()

        slew, ladder = self._slew, self.ladder
        second = scene.now_ns // NS_PER_SEC
        if scene.anew or second != self._looked_s or not ladder.usable:
            # Not in every tick: it looks at every workload.
            self._looked_s = second
            ladder.look(scene)
        rescaled = ladder.rescale(slew.applied, scene)
        if rescaled != slew.applied:
            self.loops.shift(rescaled - slew.applied)
            slew.set(rescaled)
        choice = self.loops.listen(
            scene.senses, scene.roster, specs, evidence, slew.applied, scene.dt_s, hold
        )
        if not self.loops or not ladder.usable:
            # Nobody to protect, or nothing that could be applied, which the loops must know.
            slew.set(0.0)
            ladder.release()
        else:
            if not hold:
                limits = ladder.limits(slew.applied, scene.roster)
                slew.move(choice.wanted, limits, scene.now_ns, scene.dt_s)
            slew.set(ladder.apply(slew.applied, scene))
        self.loops.settle(choice, slew.applied, scene.dt_s)
        if self.loops.safe:
            self._go_safe(scene)

    def _go_safe(self, scene: Scene) -> None:
        self._slew.set(0.0)
        if self._safe_state is SafeState.FLOOR and self.ladder.usable:
            self.ladder.apply(1.0, scene)
        else:
            self.ladder.release()


def facts_for(channel: Channel, host: HostFacts) -> Facts:
    """Return what the rungs of a channel depend on."""
    if channel is Channel.CACHE:
        return host.resctrl
    if channel is Channel.NETWORK:
        return host.links
    return host.memory_bytes if channel is Channel.MEMORY else host.disks


def rungs_of(channel: Channel, host: HostFacts, quota: QuotaPart) -> list[Rung]:
    """Return the rungs that this host's facts allow, cheapest first; *quota* is cpu's as well."""
    if channel is Channel.CACHE:
        return [*([WaysRung(), MbaRung()] if host.resctrl else []), quota]
    if channel is Channel.NETWORK:
        return [LinkRung(host.links)] if host.links else []
    if channel is Channel.MEMORY:
        return [MemoryRung(host.memory_bytes)] if host.memory_bytes else []
    return [WeightRung(), *([DiskRung(host.disks)] if host.disks else [])]
