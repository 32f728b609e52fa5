# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a demand may be applied: squeeze quickly, release in small, spaced steps."""

from controller.model import KnobLimits

__all__ = ("Slew",)


class Slew:
    """Remembers the demand that is applied and when it was last lowered."""

    __slots__ = ("_released_ns", "applied")

    def __init__(self) -> None:
        self.applied = 0.0
        self._released_ns: int | None = None

    def move(self, wanted: float, limits: KnobLimits, now_ns: int, dt_s: float) -> float:
        """Move the applied demand towards *wanted* in [0, 1] and return it."""
        if wanted >= self.applied:
            self.applied = min(wanted, self.applied + limits.squeeze_per_s * dt_s)
        elif self._released_ns is None or now_ns - self._released_ns >= limits.release_spacing_ns:
            self.applied = max(wanted, self.applied - limits.release_step)
            self._released_ns = now_ns
        return self.applied

    def set(self, applied: float) -> None:
        """Take over what the kernel really applied."""
        self.applied = applied
