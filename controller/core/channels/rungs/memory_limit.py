# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rung of the limit that the memory guard sets on best-effort work, where memory.high is missing.

v1 has no limit that slows down, so the guard's is lowered towards what best-effort work needs: it
keeps less page cache, and the kernel drops the pages of others less often.
"""

from controller.core.channels.ladder import Rung, TickContext
from controller.core.model import Knob

__all__ = ("MemoryLimitRung",)


class MemoryLimitRung(Rung):
    """Asks for less page cache of best-effort work; ``MemoryGuardian`` writes the limits."""

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
