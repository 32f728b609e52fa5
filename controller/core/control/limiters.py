# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a demand may be applied: squeeze quickly, release in small, spaced steps.

A two-state protection: on at once, off only after it was not needed for a while.

Feed-forward: what best-effort may have of a resource without being in the services' way.

A knob with few settings under a demand that moves freely, without hunting between two of them.

Each setting is a latch: taken at once when the demand asks for it, given back only after a
while, and after a longer while each time it was needed again soon. Where no setting keeps a
service exactly at its sweet point, the stricter neighbour is held, and the looser one tried
less and less often.
"""

from collections import deque
from collections.abc import Sequence

from controller.core.settings import KnobLimits
from controller.core.units import NS_PER_SEC

__all__ = (
    "Headroom",
    "HoldOffLatch",
    "RateLimiter",
    "StepSelector",
    "rescale",
)


class RateLimiter:
    """Remembers the demand that is applied.

    Releases happen when a new period of ``release_spacing_ns`` begins, on a grid that does not
    depend on when the last one was: otherwise a little more deviation could shift a release in
    time and so give best-effort more for a moment.
    """

    __slots__ = ("_last_ns", "applied")

    def __init__(self) -> None:
        self.applied = 0.0
        self._last_ns: int | None = None

    def limit(self, wanted: float, limits: KnobLimits, now_ns: int, dt_s: float) -> float:
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


class HoldOffLatch:
    """Holds for *hold_ns* after the last need, twice as long each time it is needed again soon.

    A knob that jumps between two states must not follow a noisy signal: released too early it
    is needed again, and the pair becomes a cycle. The doubling ends at *longest_ns* and is
    forgotten once the latch stayed off for as long as it last held, and for *soon_ns*.
    """

    __slots__ = (
        "_first_ns",
        "_hold_ns",
        "_longest_ns",
        "_needed_ns",
        "_released_ns",
        "_soon_ns",
        "on",
    )

    def __init__(self, hold_ns: int, longest_ns: int, soon_ns: int = 0) -> None:
        self._soon_ns = soon_ns
        self._first_ns = hold_ns
        self._hold_ns = hold_ns
        self._longest_ns = longest_ns
        self._needed_ns = 0
        self._released_ns: int | None = None
        self.on = False

    def update(self, needed: bool, now_ns: int) -> bool:
        """Take whether it is *needed* at *now_ns* and return whether it is on."""
        if needed:
            if not self.on and self._released_ns is not None:
                soon = now_ns - self._released_ns < max(self._hold_ns, self._soon_ns)
                self._hold_ns = min(self._longest_ns, 2 * self._hold_ns) if soon else self._first_ns
            self._needed_ns = now_ns
            self.on = True
        elif self.on and now_ns - self._needed_ns >= self._hold_ns:
            self.on = False
            self._released_ns = now_ns
        return self.on


_PEAK_NS = 2_000_000_000
_RISE_S = 2.0


class Headroom:
    """Tracks what the services need, and moves best-effort's ceiling out of their way.

    ``target`` is the CPUs that best-effort may use, less system work and the reserve, less the
    peak over *peak_ns* of what the services need: their on-CPU time, and of the wait inflicted on
    them the part that their sweet points do not accept. ``cpus`` falls to it at once and rises
    to it with a time constant of *rise_s*.
    """

    __slots__ = ("_needs", "_peak_ns", "_rise_s", "cpus", "target")

    def __init__(self, cpus: float, peak_ns: int = _PEAK_NS, rise_s: float = _RISE_S) -> None:
        self._needs: deque[tuple[int, float]] = deque()
        self._peak_ns = peak_ns
        self._rise_s = rise_s
        self.cpus = cpus
        self.target = cpus

    def update(self, now_ns: int, dt_s: float, available: float, services_need: float) -> float:
        """Take the services' need in CPUs at *now_ns* and return the ceiling.

        *available* is what is left of the machine for services and best-effort together.
        """
        needs = self._needs
        # A falling deque: its head is the peak, and what a later need exceeds never will be.
        while needs and needs[-1][1] <= services_need:
            needs.pop()
        needs.append((now_ns, services_need))
        while needs[0][0] < now_ns - self._peak_ns:
            needs.popleft()
        self.target = max(0.0, available - needs[0][1])
        if self.target < self.cpus:
            self.cpus = self.target
        else:
            self.cpus += min(1.0, dt_s / self._rise_s) * (self.target - self.cpus)
        return self.cpus

    def start_at(self, cpus: float) -> None:
        """Lower the ceiling to *cpus*, from where it rises again.

        A quota above what best-effort uses has no bite; so a squeeze starts at the use.
        """
        self.cpus = min(self.cpus, cpus)


# A setting that is only a little too loose is noticed slowly, for the loop's integral has to
# cross from one end of its range of demand to the other.
_SOON_NS = 120 * NS_PER_SEC

# Demands closer than this are the same: a demand that lies on a setting's edge does not ask for
# the next one.
_SAME = 1e-9


class StepSelector:
    """The settings of one knob, from 0 (free) to the strictest. ``level`` is the one in force."""

    __slots__ = ("_hold_ns", "_latches", "_longest_ns", "level")

    def __init__(self, hold_ns: int, longest_ns: int) -> None:
        self._hold_ns = hold_ns
        self._longest_ns = longest_ns
        self._latches: list[HoldOffLatch] = []
        self.level = 0

    def set_part(self, part: float, edges: Sequence[float], now_ns: int) -> float | None:
        """Choose the level for a demand of *part*, and return the demand that it stands for.

        ``edges[n]`` is the largest demand that level n satisfies, from 0 for level 0 up to 1.
        ``None``: the knob is free.
        """
        latches = self._latches
        while len(latches) < len(edges) - 1:
            latches.append(HoldOffLatch(self._hold_ns, self._longest_ns, _SOON_NS))
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


def rescale(part: float, before: Sequence[float], after: Sequence[float]) -> float:
    """Return the demand that on the edges *after* stands for what *part* was on those *before*."""
    if before == after or len(before) != len(after):
        return part
    for number in range(1, len(before)):
        low, high = before[number - 1], before[number]
        if part <= high and high > low:
            share = max(0.0, part - low) / (high - low)
            return after[number - 1] + share * (after[number] - after[number - 1])
    return after[-1]
