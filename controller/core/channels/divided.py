# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rungs that leave best-effort work an amount: memory.high, the ceilings of links, others.

memory.high divides it among the workloads, and so does io.max in ``io_max``. The ceiling of a link
is that of the best-effort tier, for all workloads together.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math

from controller.core.channels.allocator import ProportionalAllocator, Users, total_for
from controller.core.channels.ladder import Rung, TickContext
from controller.core.decision import Action
from controller.core.harm.resource_usage import LinkSide
from controller.core.knob_values import format_amount, parse_amount, parse_ceilings
from controller.core.knobs.grants import NOISE, GrantValues, RequestedLimits
from controller.core.knobs.knob_state import Place
from controller.core.limiters import Headroom, HoldOffLatch
from controller.core.model import CgroupId, Channel, Knob, KnobValue
from controller.core.settings import KnobLimits, LinkFacts
from controller.core.units import MIB, format_bytes

__all__ = ("LEAST_PART", "AllocatedRung", "LinkCeilingRung", "MemoryHighRung")

# Lowering memory.high below the use reclaims in the writer's own time (mm/memcontrol.c,
# memory_high_write), and the writer is the control thread.
_MEMORY_STEP = 64 * MIB
# The least part of a disk or a link that can be granted.
LEAST_PART = 1e-3
# The margin left free beside the services' use: 5 % of the link, or 10 % of that use (Heracles,
# ISCA 2015, section 4.3, network sub-controller).
_MARGIN_LINK, _MARGIN_USE = 0.05, 0.10


class AllocatedRung(Rung):
    """Moves one knob of every best-effort workload, see ``ProportionalAllocator``.

    *capacity* is what the machine has of the resource, *least* the smallest amount that can be
    granted, both in the resource's unit.
    """

    def __init__(self, knob: Knob, capacity: float, least: float, writer: GrantValues) -> None:
        self.knob = knob
        self._allocator = ProportionalAllocator(capacity, least)
        self._writer = writer
        self._blocked: frozenset[CgroupId] = frozenset()
        self._grants: Mapping[CgroupId, float] = {}

    def usable(self, context: TickContext) -> bool:
        """Return whether there is a workload whose knob can be moved now."""
        if not context.knobs.movable(self.knob, context.now_ns):
            return False
        present = context.workload_index.best_effort
        self._blocked = context.knobs.blocked(present, self.knob, context.now_ns)
        return len(self._blocked) < len(present)

    def set_part(self, part: float, context: TickContext) -> float | None:
        """Divide the total that *part* leaves; return *part*, ``None`` if nothing is limited."""
        self.part = part
        available, need = self._feed_forward(context)
        allocator = self._allocator
        allocator.ceiling.update(context.now_ns, context.elapsed_s, available, need)
        number = len(context.workload_index.best_effort)
        limits = context.workload_index.limits[self.knob]
        users = Users(number, self._floor(limits), self._blocked)
        self._grants = allocator.update(part, users, lambda: self._use(context), context.now_ns)
        return part if allocator.engaged else None

    def changes(self, context: TickContext) -> Sequence[tuple[Place, KnobValue | None]]:
        """Return the values of this tick."""
        return self._writer.changes(
            self._limit(self._grants, context),
            self._allocator.floor_each,
            context.workload_index.best_effort,
            context.knobs,
            context.resync,
        )

    def release(self) -> None:
        """Remove all limits at once."""
        super().release()
        self._allocator.release()
        self._grants = self._allocator.grants

    @abstractmethod
    def _use(self, context: TickContext) -> dict[CgroupId, float]:
        """Return the use of every best-effort workload."""

    @abstractmethod
    def _feed_forward(self, context: TickContext) -> tuple[float, float]:
        """Return what services and best-effort may use together, and what the services use."""

    def _floor(self, limits: KnobLimits) -> float:
        return limits.floor

    def _limit(
        self, grants: Mapping[CgroupId, float], context: TickContext
    ) -> Mapping[CgroupId, float]:
        """Return the amounts that may be written in this tick on the way to *grants*."""
        return grants


class MemoryHighRung(AllocatedRung):
    """Lowers memory.high: above it the kernel reclaims and slows the workload down."""

    def __init__(self, memory_bytes: int) -> None:
        """*memory_bytes* is what all work shares."""

        def value_for(amount: float, original: KnobValue) -> KnobValue:
            return format_amount(amount)

        writer = GrantValues(Knob.MEMORY_HIGH, parse_amount, value_for, largest=_MEMORY_STEP / 2)
        super().__init__(Knob.MEMORY_HIGH, float(memory_bytes), float(MIB), writer)
        self._memory_bytes = memory_bytes
        # The last grants that no longer have to be approached in steps.
        self._reached: Mapping[CgroupId, float] | None = None
        self._bounds = RequestedLimits()
        self._shares = RequestedLimits("its share of the memory that everything else leaves")

    def usable(self, context: TickContext) -> bool:
        """Return whether memory.high can be moved, and the use of memory is measured."""
        return context.usage.of(Channel.MEMORY).wanted is not None and super().usable(context)

    def describe(self) -> str:
        """Return how much memory best-effort may keep."""
        total = self._allocator.total
        return "memory not limited" if total is None else f"memory {format_bytes(total)}"

    def explain(self, actions: list[Action]) -> list[Action]:
        """Return *actions*; those for the workloads' own limits get a reason of their own."""
        return self._shares.explain(self._bounds.explain(actions))

    def _use(self, context: TickContext) -> dict[CgroupId, float]:
        rates = context.usage.of(Channel.MEMORY).rates
        return {
            cgroup: rates[cgroup]
            for cgroup in context.workload_index.best_effort
            if cgroup in rates
        }

    def _feed_forward(self, context: TickContext) -> tuple[float, float]:
        return float(self._memory_bytes), context.usage.of(Channel.MEMORY).others

    def _limit(
        self, grants: Mapping[CgroupId, float], context: TickContext
    ) -> Mapping[CgroupId, float]:
        grants = self._bounds.apply(grants, context.workload_index.memory_limits)
        grants = self._shares.apply(grants, context.memory_shares)
        if grants is self._reached:
            return grants
        use = self._use(context)
        limited = {}
        for cgroup, amount in grants.items():
            value = context.knobs.value(*cgroup, self.knob)
            now = math.inf if value is None else parse_amount(value)
            start = min(now, use.get(cgroup, now))
            if start < math.inf:  # without a limit and without a known use there is no first step
                limited[cgroup] = max(amount, start - _MEMORY_STEP)
        if limited == grants:
            self._reached = grants
            return grants
        return limited


@dataclass(slots=True)
class _Link:
    """A shaped link. Pairs are egress and ingress, in bytes per second.

    ``ceilings`` is what best-effort may use, ``granted`` what it may use at the present demand
    (``None``: not limited).
    """

    facts: LinkFacts
    ceilings: tuple[Headroom, Headroom]
    granted: tuple[float, float] | None = None


class LinkCeilingRung(Rung):
    """Moves the ceilings of all shaped links from the feed-forward ceiling to the floor.

    It engages with the first demand and releases after a hold-off time, as the quota does.
    """

    def __init__(self, links: tuple[LinkFacts, ...]) -> None:
        self.knob = Knob.TC_CEILING
        self._latch = HoldOffLatch()
        self._links = {
            (facts.target.scope, facts.target.id): _Link(
                facts, (Headroom(facts.egress_bytes_per_s), Headroom(facts.ingress_bytes_per_s))
            )
            for facts in links
        }

    def usable(self, context: TickContext) -> bool:
        """Return whether there is a shaped link whose ceiling can be moved now."""
        movable = context.knobs.movable(self.knob, context.now_ns)
        return any((target.scope, target.id) in self._links for target in movable)

    def set_part(self, part: float, context: TickContext) -> float | None:
        """Compute the ceilings for *part*; return *part*, ``None`` if nothing is limited."""
        self.part = part
        was_engaged = self._latch.on
        engaged = self._latch.update(part > 0, context.now_ns)
        least = max(LEAST_PART, context.workload_index.limits[self.knob].floor)
        for key, link in self._links.items():
            grants = []
            both = (link.facts.egress_bytes_per_s, link.facts.ingress_bytes_per_s)
            for carried, ceiling, ingress in zip(both, link.ceilings, (False, True), strict=True):
                use = context.usage.links.get(LinkSide(*key, ingress))
                need = (1 + _MARGIN_USE) * (use.others if use else 0.0)
                available = (1 - _MARGIN_LINK) * carried
                ceiling.update(context.now_ns, context.elapsed_s, available, need)
                if engaged and not was_engaged and use is not None and use.wanted is not None:
                    ceiling.lower_to(use.wanted)
                grants.append(total_for(part, least * carried, ceiling.amount))
            link.granted = (grants[0], grants[1]) if engaged else None
        return part if engaged else None

    def changes(self, context: TickContext) -> Sequence[tuple[Place, KnobValue | None]]:
        """Return the values of this tick; a change that is noise is left out."""
        values = []
        for place, link in self._links.items():
            original = context.knobs.original(*place, self.knob)
            now = context.knobs.value(*place, self.knob)
            if original is None or now is None:
                continue
            value = None if link.granted is None else _limited(link.granted, original)
            if value is None or now == original or _differs(value, now):
                values.append((place, value))
        return values

    def release(self) -> None:
        """Remove all limits at once."""
        super().release()
        self._latch = HoldOffLatch()
        for link in self._links.values():
            link.granted = None

    def describe(self) -> str:
        """Return how much best-effort may send and receive."""
        sides = [
            f"{link.facts.target.path} {format_bytes(link.granted[0])}/s out, "
            f"{format_bytes(link.granted[1])}/s in"
            for link in self._links.values()
            if link.granted is not None
        ]
        return "; ".join(sides) or "network not limited"


def _limited(granted: tuple[float, float], original: KnobValue) -> KnobValue:
    # A direction that is not shaped is 0 and stays 0.
    words = (
        round(min(grant, most)) if most > 0 else 0
        for grant, most in zip(granted, parse_ceilings(original), strict=True)
    )
    return KnobValue(" ".join(map(str, words)))


def _differs(value: KnobValue, now: KnobValue) -> bool:
    """Return whether either direction changed by more than noise."""
    return any(
        abs(new - old) >= NOISE * old
        for new, old in zip(parse_ceilings(value), parse_ceilings(now), strict=True)
        if old
    )
