# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A ladder: the graded knobs of one channel, cheapest first, moved by one demand.

The range of the demand is divided evenly among the rungs that are usable now. With three of them
the first rung moves from free to its strictest setting while the demand goes from 0 to one third;
then the second rung moves. A rung that is not usable is skipped, and the others share its part of
the range.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
import math
from types import MappingProxyType
from typing import NamedTuple

from controller.core.decision import Action, RungReport
from controller.core.harm.harm_finder import HarmFinder
from controller.core.harm.resource_usage import ResourceUsage
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.knobs.knob_state import KnobState, Place
from controller.core.limiters import EDGE
from controller.core.model import CgroupId, Channel, Knob, KnobValue
from controller.core.settings import KnobLimits
from controller.core.workload_index import WorkloadIndex

__all__ = ("AT_STOP", "Ladder", "MemoryLimitRung", "Rung", "SharedQuotaRung", "TickContext")

# From this demand on every knob of a channel counts as at its strictest setting.
AT_STOP = 0.99


class TickContext(NamedTuple):
    """The input of the rungs in one tick.

    ``dt_s`` is the time since the last tick or look, at most two control periods: for so long the
    indicators may have had their values. ``elapsed_s`` is the time since the last tick, for what
    follows time alone.
    ``hold``: the demands stay, as in the first tick and after a gap.
    ``resync``: the workloads changed, or a knob changed by another program, so earlier writes
    cannot be relied on. ``memory_shares`` are bytes that best-effort workloads may have at most, by
    the memory guard; ``guarded`` are the cgroups whose limit of memory it moves. ``asking`` are the
    services that the squeeze on this rung's channel is for.
    """

    now_ns: int
    dt_s: float
    resync: bool
    tracker: IndicatorTracker
    workload_index: WorkloadIndex
    knobs: KnobState
    usage: ResourceUsage
    harm: HarmFinder
    memory_shares: Mapping[CgroupId, float] = MappingProxyType({})
    elapsed_s: float = 0.0
    hold: bool = False
    guarded: frozenset[CgroupId] = frozenset()
    asking: frozenset[str] = frozenset()


class Rung(ABC):
    """One graded knob, moved by this rung's part of the channel's demand.

    ``part`` is the position of ``knob``, from 0 (free) to 1 (its strictest setting). Without
    methods of its own a rung asks for any part, and another part of the core writes it.
    """

    knob: Knob
    part: float = 0.0

    @abstractmethod
    def usable(self, context: TickContext) -> bool:
        """Return whether there is a target whose knob can be moved now."""

    def rescale(self, part: float, context: TickContext) -> float:
        """Return the part that stands now for what *part* stood for in the last tick."""
        return part

    def set_part(self, part: float, context: TickContext) -> float | None:
        """Move to *part* as far as possible, and return the part that the setting stands for.

        ``None``: the knob is free.
        """
        self.part = part
        return part if part > 0 else None

    def changes(self, context: TickContext) -> Sequence[tuple[Place, KnobValue | None]]:
        """Return the values of this tick, for ``KnobState.limit``."""
        return ()

    def explain(self, actions: list[Action]) -> list[Action]:
        """Return *actions*; those that no demand explains get another reason."""
        return actions

    def release(self) -> None:
        """Go to the free setting at once."""
        self.part = 0.0

    @abstractmethod
    def describe(self) -> str:
        """Return the setting in a few words."""


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


class Ladder:
    """The rungs of one channel, and those that are ``usable``, which can be moved now.

    Rungs with one of the knobs in ``spared`` are left free.
    """

    def __init__(self, channel: Channel, rungs: Sequence[Rung]) -> None:
        self._channel = channel
        self.rungs = tuple(rungs)
        self.usable: tuple[Rung, ...] = ()
        self.spared: frozenset[Knob] = frozenset()

    def update(self, context: TickContext) -> None:
        """Determine the rungs that are usable now."""
        self.usable = tuple(
            rung for rung in self.rungs if rung.knob not in self.spared and rung.usable(context)
        )

    def limits(self, demand: float, workload_index: WorkloadIndex) -> KnobLimits:
        """Return the limits of the rung that moves next when *demand* falls."""
        count = len(self.usable)
        # A demand on the border of two rungs belongs to the lower one.
        number = min(count, max(1, math.ceil(demand * count - EDGE)))
        limits = workload_index.limits[self.usable[number - 1].knob]
        return replace(limits, release_step=limits.release_step / count)

    def rescale(self, demand: float, context: TickContext) -> float:
        """Return the demand that stands now for what *demand* stood for in the last tick.

        A rung may have learned the effect of its settings, which changes its scale. The setting in
        force is still the right one and must not move because of that.
        """
        count = len(self.usable)
        rescaled = demand
        for number, rung, part in self._parts(demand):
            now = rung.rescale(part, context)
            if now != part and 0 < part < 1:
                rescaled = (number + now) / count
        return rescaled

    def apply(self, demand: float, context: TickContext) -> float:
        """Move the rungs to *demand* and return the demand that their settings stand for."""
        applied = 0.0
        for number, rung, part in self._parts(demand):
            reached = rung.set_part(part, context)
            if reached is not None:
                applied = (number + reached) / len(self.usable)
        for rung in self.rungs:
            if rung not in self.usable:
                rung.release()
        return applied

    def _parts(self, demand: float) -> Iterator[tuple[int, Rung, float]]:
        for number, rung in enumerate(self.usable):
            part = min(1.0, max(0.0, demand * len(self.usable) - number))
            yield number, rung, part

    def release(self) -> None:
        """Go to the free setting of all rungs at once."""
        for rung in self.rungs:
            rung.release()

    def actions(self, context: TickContext, why: Callable[[], str]) -> list[Action]:
        """Return the writes of this tick; *why* returns the reason, if there are any."""
        actions = []
        for rung in self.rungs:
            if changes := rung.changes(context):
                made = context.knobs.limit(rung.knob, changes, why(), context.now_ns)
                actions += rung.explain(made)
        return actions

    def reports(self) -> tuple[RungReport, ...]:
        """Return the position of every rung."""
        return tuple(
            RungReport(
                channel=self._channel,
                knob=rung.knob,
                part=rung.part,
                usable=rung in self.usable or rung.knob in self.spared,
                setting=rung.describe(),
            )
            for rung in self.rungs
        )
