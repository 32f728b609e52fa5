# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A channel's ladder: graded knobs, cheapest first, under one demand.

The demand's range is split evenly among the rungs that can be used now: with three of them the
first goes from free to its stop while the demand goes from 0 to a third, then the second moves.
A rung that cannot be moved is skipped, and the others share its part.
"""

from collections.abc import Sequence
from dataclasses import replace
import math
from typing import NamedTuple, Protocol

from controller.core.control.knob_state import KnobState
from controller.core.control.resource_usage import ResourceUsage
from controller.core.control.tuning import DEFAULT_LIMITS, tightest_limits
from controller.core.decision import Action, RungReport
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.model import Channel, Knob
from controller.core.settings import HostFacts, KnobLimits
from controller.core.workload_index import WorkloadIndex

__all__ = ("Ladder", "Rung", "TickContext", "limits_of")

# A demand on the border of two rungs belongs to the lower one.
_SAME = 1e-9


class TickContext(NamedTuple):
    """What a rung looks at in one tick.

    ``resync``: workloads or knobs changed by other hands, so nothing that was asked for before can
    be taken for granted.
    """

    now_ns: int
    dt_s: float
    resync: bool
    host: HostFacts
    tracker: IndicatorTracker
    workload_index: WorkloadIndex
    knobs: KnobState
    usage: ResourceUsage


class Rung(Protocol):
    """One graded knob. ``part`` is how far it is from free (0) to its stop (1)."""

    @property
    def knob(self) -> Knob:
        """The knob that it moves."""

    @property
    def part(self) -> float:
        """How far the knob is, from 0 to 1."""

    def usable(self, context: TickContext) -> bool:
        """Return whether there is anything that can be moved now."""

    def rescale(self, part: float, limits: KnobLimits, context: TickContext) -> float:
        """Return which part stands now for what *part* stood for in the last tick."""

    def set_part(self, part: float, limits: KnobLimits, context: TickContext) -> float | None:
        """Go to *part* as far as it can, and return the part that its setting stands for.

        ``None``: the knob is free.
        """

    def actions(self, context: TickContext, reason: str) -> list[Action]:
        """Return what has to be written."""

    def release(self) -> None:
        """Go free at once."""

    def describe(self) -> str:
        """Return the setting in a few words."""


def limits_of(knob: Knob, workload_index: WorkloadIndex) -> KnobLimits:
    """Return the limits of *knob* that satisfy every service present."""
    default = DEFAULT_LIMITS[knob]
    return tightest_limits(
        (profile.limits.get(knob, default) for profile in workload_index.profiles), default
    )


class Ladder:
    """The rungs of one channel."""

    __slots__ = ("_channel", "_usable", "rungs")

    def __init__(self, channel: Channel, rungs: Sequence[Rung]) -> None:
        self._channel = channel
        self.rungs = tuple(rungs)
        self._usable: tuple[Rung, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether any rung can be moved."""
        return bool(self._usable)

    def update(self, context: TickContext) -> None:
        """Find out which rungs can be moved now."""
        self._usable = tuple(rung for rung in self.rungs if rung.usable(context))

    def limits(self, demand: float, workload_index: WorkloadIndex) -> KnobLimits:
        """Return the limits of the rung that moves next when *demand* falls."""
        count = len(self._usable)
        number = min(count, max(1, math.ceil(demand * count - _SAME)))
        limits = limits_of(self._usable[number - 1].knob, workload_index)
        return replace(limits, release_step=limits.release_step / count)

    def rescale(self, demand: float, context: TickContext) -> float:
        """Return which demand stands now for what *demand* stood for in the last tick.

        A rung may have learned what its settings are worth: what is set was not wrong for that.
        """
        count = len(self._usable)
        rescaled = demand
        for number, rung in enumerate(self._usable):
            part = min(1.0, max(0.0, demand * count - number))
            now = rung.rescale(part, limits_of(rung.knob, context.workload_index), context)
            if now != part and 0 < part < 1:
                rescaled = (number + now) / count
        return rescaled

    def apply(self, demand: float, context: TickContext) -> float:
        """Move the rungs to *demand* and return the demand that their settings stand for."""
        applied = 0.0
        count = len(self._usable)
        for number, rung in enumerate(self._usable):
            part = min(1.0, max(0.0, demand * count - number))
            settled = rung.set_part(part, limits_of(rung.knob, context.workload_index), context)
            if settled is not None:
                applied = (number + settled) / count
        for rung in self.rungs:
            if rung not in self._usable:
                rung.release()
        return applied

    def release(self) -> None:
        """Let go of everything at once."""
        for rung in self.rungs:
            rung.release()

    def actions(self, context: TickContext, reason: str) -> list[Action]:
        """Return what has to be written."""
        return [action for rung in self.rungs for action in rung.actions(context, reason)]

    def reports(self) -> tuple[RungReport, ...]:
        """Return where every rung stands."""
        return tuple(
            RungReport(
                channel=self._channel,
                knob=rung.knob,
                part=rung.part,
                usable=rung in self._usable,
                setting=rung.describe(),
            )
            for rung in self.rungs
        )
