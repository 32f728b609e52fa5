# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A knob with few settings under a demand that moves freely, without hunting between two of them.

Each setting is a latch: taken at once when the demand asks for it, given back only after a
while, and after a longer while each time it was needed again soon. Where no setting keeps a
service exactly at its sweet point, the stricter neighbour is held, and the looser one tried
less and less often.
"""

from collections.abc import Sequence

from controller.control.latch import Latch
from controller.units import NS_PER_SEC

__all__ = ("Steps", "moved")

# A setting that is only a little too loose is noticed slowly, for the loop's integral has to
# cross from one end of its range of demand to the other.
_SOON_NS = 120 * NS_PER_SEC

# Demands closer than this are the same: a demand that lies on a setting's edge does not ask for
# the next one.
_SAME = 1e-9


class Steps:
    """The settings of one knob, from 0 (free) to the strictest. ``level`` is the one in force."""

    __slots__ = ("_hold_ns", "_latches", "_longest_ns", "level")

    def __init__(self, hold_ns: int, longest_ns: int) -> None:
        self._hold_ns = hold_ns
        self._longest_ns = longest_ns
        self._latches: list[Latch] = []
        self.level = 0

    def settle(self, part: float, edges: Sequence[float], now_ns: int) -> float | None:
        """Choose the level for a demand of *part*, and return the demand that it stands for.

        ``edges[n]`` is the largest demand that level n satisfies, from 0 for level 0 up to 1.
        ``None``: the knob is free.
        """
        latches = self._latches
        while len(latches) < len(edges) - 1:
            latches.append(Latch(self._hold_ns, self._longest_ns, _SOON_NS))
        del latches[max(0, len(edges) - 1) :]
        level = 0
        for number, latch in enumerate(latches, 1):
            if latch.update(part > edges[number - 1] + _SAME, now_ns):
                level = number
        self.level = level
        return max(part, edges[level - 1]) if level else None

    def release(self) -> None:
        """Go free at once."""
        self._latches.clear()
        self.level = 0


def moved(part: float, before: Sequence[float], after: Sequence[float]) -> float:
    """Return the demand that on the edges *after* stands for what *part* was on those *before*."""
    if before == after or len(before) != len(after):
        return part
    for number in range(1, len(before)):
        low, high = before[number - 1], before[number]
        if part <= high and high > low:
            share = max(0.0, part - low) / (high - low)
            return after[number - 1] + share * (after[number] - after[number - 1])
    return after[-1]
