# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rung of the limit that the memory guard sets on best-effort work, where memory.high is missing.

v1 has no limit that slows down, so the guard's is lowered towards what best-effort work needs: it
keeps less page cache, and the kernel drops the pages of others less often.
"""

from controller.core.channels.ladder import TickContext
from controller.core.decision import Action
from controller.core.model import Knob
from controller.core.settings import KnobLimits

__all__ = ("MemoryLimitRung",)


class MemoryLimitRung:
    """Asks for less page cache of best-effort work; ``MemoryGuardian`` writes the limits."""

    knob = Knob.MEMORY_MAX

    def __init__(self) -> None:
        self.part = 0.0

    def usable(self, context: TickContext) -> bool:
        """Return whether the guard has a limit of v1 that can be moved now."""
        return any(
            target.hierarchy != "v2" and context.knobs.is_movable(target, self.knob, context.now_ns)
            for target in context.guarded
        )

    def rescale(self, part: float, limits: KnobLimits, context: TickContext) -> float:
        """Return *part*: the scale of this rung never changes."""
        return part

    def set_part(self, part: float, limits: KnobLimits, context: TickContext) -> float | None:
        """Take *part*; there is a limit for any part."""
        self.part = part
        return part if part > 0 else None

    def actions(self, context: TickContext, reason: str) -> list[Action]:
        """Return no writes: those of the limit are the guard's."""
        return []

    def release(self) -> None:
        """Demand nothing at once."""
        self.part = 0.0

    def describe(self) -> str:
        """Return the part of the page cache that goes in a few words."""
        return f"page cache limited by {self.part:.0%}" if self.part else "page cache not limited"
