# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a demand may be applied: squeeze quickly, release in small, spaced steps."""

from controller.settings import KnobLimits

__all__ = ("Slew",)


class Slew:
    """Remembers the demand that is applied.

    Releases happen when a new period of ``release_spacing_ns`` begins, on a grid that does not
    depend on when the last one was: otherwise a little more deviation could shift a release in
    time and so give best-effort more for a moment.
    """

    __slots__ = ("_last_ns", "applied")

    def __init__(self) -> None:
        self.applied = 0.0
        self._last_ns: int | None = None

    def move(self, wanted: float, limits: KnobLimits, now_ns: int, dt_s: float) -> float:
        """Move the applied demand towards *wanted* in [0, 1] and return it."""
        spacing_ns = max(1, limits.release_spacing_ns)
        last_ns, self._last_ns = self._last_ns, now_ns
        may_release = last_ns is None or now_ns // spacing_ns != last_ns // spacing_ns
        if wanted >= self.applied:
            self.applied = min(wanted, self.applied + limits.squeeze_per_s * dt_s)
        elif may_release:
            self.applied = max(wanted, self.applied - limits.release_step)
        return self.applied

    def set(self, applied: float) -> None:
        """Take over what the kernel really applied."""
        self.applied = applied
