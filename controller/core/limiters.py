# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How fast and how often a decision or an amount may move, and what shows an effect of a move.

``has_risen`` and ``has_fallen`` take a change of a smoothed deviation (``LowPass``) by three
tenths: a smaller part of the suffering is not worth what it costs. ``Backoff`` is the wait after a
change in vain.

The limits are asymmetric, because a squeeze protects a service and a release does not: towards the
stricter side they follow at once or nearly so, towards the looser side slowly.

- ``HoldOffLatch``: a decision of two states; on at once, off after a hold-off time.
- ``StepSelector``: a knob with few settings under a continuous demand; one latch for each setting.
  ``rescale`` converts a demand when the scale of these settings changes.
- ``Headroom``: feed-forward. The amount of a resource that best-effort may use without being in the
  services' way; falls at once, rises slowly.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
import math

from controller.core.units import NS_PER_SEC

__all__ = (
    "EDGE",
    "HOLD_NS",
    "NEAR",
    "PATIENCE_S",
    "SMOOTH_S",
    "SUFFERS",
    "UNMET",
    "Backoff",
    "Headroom",
    "HoldOffLatch",
    "LowPass",
    "StepSelector",
    "has_fallen",
    "has_risen",
    "rescale",
    "smoothing",
)

# Time constant of the low-pass in front: about one window, and less than what a reader notices.
SMOOTH_S = 1.0
# From this deviation on a service suffers beyond noise; as far below 0 it is clear of its sweet
# point.
SUFFERS = 0.25
_PART = 0.3
# A demand at most this far above another one is as good as that one.
NEAR = 0.05

# What a change does is seen after a window and so long.
PATIENCE_S = 3.0
# A deviation above this is no noise around the sweet point: at the stop it is out of reach, after a
# release this is a relapse.
UNMET = 0.3


def smoothing(dt_s: float, time_constant_s: float) -> float:
    """Return the weight of a new value in a low-pass with *time_constant_s*."""
    return 1.0 - math.exp(-dt_s / time_constant_s)


class LowPass:
    """First-order low-pass. The first input is the first output."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def update(self, value: float, dt_s: float, time_constant_s: float) -> float:
        """Take an input, *dt_s* after the last one, and return the filtered value."""
        if self.value is None or time_constant_s <= 0:
            self.value = value
        else:
            self.value += smoothing(dt_s, time_constant_s) * (value - self.value)
        return self.value


def has_risen(deviation: float, before: float) -> bool:
    """Return whether a service suffers more than *before*, both as smoothed deviations.

    A smaller rise is noise: that of a window of a second is half as large. A fall ends where the
    loops decide by themselves, so it needs no such bound.
    """
    return deviation > max(before + 2 * SUFFERS, before / (1 - _PART))


def has_fallen(deviation: float, before: float) -> bool:
    """Return whether a service suffers less than *before*, both as smoothed deviations."""
    return deviation < (1 - _PART) * before


class Backoff:
    """A pause that doubles from *first* to *longest*, in the caller's unit of time.

    ``pause`` is the last one, 0 at the begin.
    """

    __slots__ = ("_first", "_longest", "pause")

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self.pause = 0.0

    def next(self) -> float:
        """Return the next pause."""
        self.pause = min(self._longest, max(self._first, 2 * self.pause))
        return self.pause

    def reset(self) -> None:
        """Let the next pause be the first again."""
        self.pause = 0.0


# So long the effect of a change is waited for, before it is taken back or another one is made.
HOLD_NS = 20 * NS_PER_SEC


class HoldOffLatch:
    """A latch of two states that stays on for a hold-off time after it was last needed.

    A knob of two states must not follow a noisy signal: released too early it is needed again, and
    the two form a cycle. So the hold-off time, at first *hold_ns*, is doubled each time the latch
    is needed again soon, up to an hour. "Soon" is within the hold-off time that was in force, and
    at least within *soon_ns*; after a longer time off the hold-off time is *hold_ns* again.
    """

    __slots__ = ("_backoff", "_needed_ns", "_released_ns", "_soon_ns", "on")

    def __init__(self, hold_ns: int = HOLD_NS, soon_ns: int = 0) -> None:
        self._soon_ns = soon_ns
        self._backoff = Backoff(hold_ns, 3600 * NS_PER_SEC)
        self._backoff.next()
        self._needed_ns = 0
        self._released_ns: int | None = None
        self.on = False

    def update(self, needed: bool, now_ns: int) -> bool:
        """Return whether the latch is on at *now_ns*, given whether it is *needed* then."""
        if needed:
            if not self.on and self._released_ns is not None:
                if now_ns - self._released_ns >= max(self._backoff.pause, self._soon_ns):
                    self._backoff.reset()
                self._backoff.next()
            self._needed_ns = now_ns
            self.on = True
        elif self.on and now_ns - self._needed_ns >= self._backoff.pause:
            self.on = False
            self._released_ns = now_ns
        return self.on


# Demands closer than this are equal, so a demand on the edge of a setting does not select the next
# setting.
EDGE = 1e-9


@dataclass(slots=True)
class StepSelector:
    """Selects a setting of a knob that has few of them, from 0 (free) to the strictest.

    ``level`` is the setting in force. Each setting has a ``HoldOffLatch``: it is selected at once
    when the demand asks for it, and left after the hold-off time, which doubles while it is needed
    again soon. Where no setting keeps a service exactly at its sweet point, this holds the stricter
    neighbour and tries the looser one less and less often, instead of a limit cycle between them.
    """

    level: int = 0
    _latches: list[HoldOffLatch] = field(default_factory=list)

    def set_part(self, part: float, edges: Sequence[float], now_ns: int) -> float | None:
        """Select the level for a demand of *part*, and return the demand that the level stands for.

        ``edges[n]`` is the largest demand that level n satisfies, from 0 for level 0 up to 1.
        ``None``: the knob is free.
        """
        latches = self._latches
        while len(latches) < len(edges) - 1:
            # A setting that is only a little too loose is noticed late: the loop's integral first
            # has to cross its whole range of demand.
            latches.append(HoldOffLatch(soon_ns=6 * HOLD_NS))
        del latches[max(0, len(edges) - 1) :]
        level = 0
        for number, latch in enumerate(latches, 1):
            if latch.update(part > edges[number - 1] + EDGE, now_ns):
                level = number
        self.level = level
        return max(part, edges[level - 1]) if level else None

    def release(self) -> None:
        """Go to level 0 at once and forget all hold-off times."""
        self._latches.clear()
        self.level = 0


def rescale(part: float, before: Sequence[float], after: Sequence[float]) -> float:
    """Convert the demand *part* from the scale with the edges *before* to that with *after*.

    Piecewise linear between the edges. Scales of different length cannot be converted; *part* is
    then returned as it is.
    """
    if before == after or len(before) != len(after):
        return part
    for number in range(1, len(before)):
        low, high = before[number - 1], before[number]
        if part <= high and high > low:
            share = max(0.0, part - low) / (high - low)
            return after[number - 1] + share * (after[number] - after[number - 1])
    return after[-1]


@dataclass(slots=True)
class Headroom:
    """The amount of a resource that is left for best-effort work beside what the services need.

    ``amount`` follows a target: what is available to both, less the peak over ``peak_ns`` of what
    the services need. It falls to the target at once, and rises to it with the time constant
    ``rise_s``.
    All amounts are in the unit of the resource: CPUs, bytes, or bytes per second.
    """

    amount: float
    peak_ns: int = 2 * NS_PER_SEC
    rise_s: float = 2.0
    _needs: deque[tuple[int, float]] = field(default_factory=deque)

    def update(self, now_ns: int, dt_s: float, available: float, services_need: float) -> float:
        """Take the services' need at *now_ns*, *dt_s* after the last one, and return ``amount``.

        *available* is what services and best-effort may use together. For CPUs that is the machine
        less system work and the reserve, and the need is the services' on-CPU time and, of the wait
        inflicted on them, the part that exceeds what their sweet points accept.
        """
        needs = self._needs
        # A monotonic queue: needs in falling order, so its head is the peak. An older need that is
        # not above a newer one can never be the peak again.
        while needs and needs[-1][1] <= services_need:
            needs.pop()
        needs.append((now_ns, services_need))
        while needs[0][0] < now_ns - self.peak_ns:
            needs.popleft()
        target = max(0.0, available - needs[0][1])
        if target < self.amount:
            self.amount = target
        else:
            self.amount += min(1.0, dt_s / self.rise_s) * (target - self.amount)
        return self.amount

    def lower_to(self, amount: float) -> None:
        """Lower ``amount`` to *amount* if it is above, from where it rises again.

        A limit above what best-effort uses has no effect, so a squeeze starts at the measured use.
        """
        self.amount = min(self.amount, amount)
