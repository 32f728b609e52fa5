# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The rung of the network channel: the ceiling of the best-effort tier on every shaped link."""

from dataclasses import dataclass, field

from controller.core.channels.ladder import Rung, TickContext
from controller.core.channels.rungs.allocator import total_for
from controller.core.decision import Action
from controller.core.harm.resource_usage import LinkSide
from controller.core.knob_comparison import is_stricter
from controller.core.knob_values import parse_ceilings
from controller.core.knobs.grants import NOISE
from controller.core.model import Knob, KnobValue, Target
from controller.core.pace.limiters import Headroom, HoldOffLatch
from controller.core.settings import KnobLimits, LinkFacts
from controller.core.units import format_bytes

__all__ = ("LinkCeilingRung",)

# The margin left free beside the services' use: 5 % of the link, or 10 % of that use (Heracles,
# ISCA 2015, section 4.3, network sub-controller).
_MARGIN_LINK = 0.05
_MARGIN_USE = 0.10
_LEAST_BYTES_PER_S = 1000.0


@dataclass(slots=True)
class _Link:
    """A shaped link. Pairs are egress and ingress, in bytes per second.

    ``ceilings`` is what best-effort may use, ``granted`` what it may use at the present demand
    (``None``: not limited), ``written`` the last value that was requested (empty: none).
    """

    facts: LinkFacts
    ceilings: tuple[Headroom, Headroom]
    granted: tuple[float, float] | None = None
    written: list[float] = field(default_factory=list)


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

    def set_part(self, part: float, limits: KnobLimits, context: TickContext) -> float | None:
        """Compute the ceilings for *part*; return *part*, ``None`` if nothing is limited."""
        self.part = part
        was_engaged = self._latch.on
        engaged = self._latch.update(part > 0, context.now_ns)
        for key, link in self._links.items():
            grants = []
            both = (link.facts.egress_bytes_per_s, link.facts.ingress_bytes_per_s)
            for carried, ceiling, ingress in zip(both, link.ceilings, (False, True), strict=True):
                use = context.usage.links.get(LinkSide(*key, ingress))
                others = use.others if use else 0.0
                available = (1 - _MARGIN_LINK) * carried
                ceiling.update(
                    context.now_ns, context.elapsed_s, available, (1 + _MARGIN_USE) * others
                )
                if engaged and not was_engaged and use is not None and use.wanted is not None:
                    ceiling.lower_to(use.wanted)
                floor = max(_LEAST_BYTES_PER_S, limits.floor * carried)
                grants.append(total_for(part, floor, ceiling.amount))
            link.granted = (grants[0], grants[1]) if engaged else None
        return part if engaged else None

    def actions(self, context: TickContext, reason: str) -> list[Action]:
        """Return the writes of this tick; a change that is noise is not written."""
        actions = []
        for target in context.knobs.targets(self.knob):
            link = self._links.get((target.scope, target.id))
            action = None if link is None else self._action(target, link, context, reason)
            if action is not None:
                actions.append(action)
        return actions

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

    def _action(
        self, target: Target, link: _Link, context: TickContext, reason: str
    ) -> Action | None:
        key = (target.scope, target.id, self.knob)
        original = context.knobs.original(*key)
        if original is None:
            return None
        value = None if link.granted is None else _limited(link.granted, original)
        if value is None or not is_stricter(self.knob, value, original):
            link.written = []
            return context.knobs.restore(*key, reason, context.now_ns)
        wanted = parse_ceilings(value)
        if link.written and not context.resync and not _differs(wanted, link.written):
            return None
        link.written = wanted
        return context.knobs.request(*key, value, reason, context.now_ns)


def _limited(granted: tuple[float, float], original: KnobValue) -> KnobValue:
    # A direction that is not shaped is 0 and stays 0.
    words = (
        round(min(grant, most)) if most > 0 else 0
        for grant, most in zip(granted, parse_ceilings(original), strict=True)
    )
    return KnobValue(" ".join(map(str, words)))


def _differs(wanted: list[float], written: list[float]) -> bool:
    """Return whether either direction changed by more than noise."""
    return any(
        abs(new - old) >= NOISE * old for new, old in zip(wanted, written, strict=True) if old
    )
