# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a squeeze is released: fast while it shows that nothing is left to protect from.

Under a full squeeze nothing shows whether the harm has ended or is only held down. The release
finds out: it starts at a speed at which even a plant of four times the usual gain reaches the sweet
point slowly, and the speed doubles every second for as long as the service does not react. Where
the service reacts, the loops decide again. Where it suffers soon after a fast release, the level
that was left is the last one that was safe: the demand stays there for a while that doubles.
"""

from collections import deque
from typing import NamedTuple

from controller.core.loop.pid import LowPass
from controller.core.loop.reaction import SMOOTH_S, Backoff, has_risen
from controller.core.units import NS_PER_SEC

__all__ = ("Pace", "ReleasePace")

# Speed of the first second, in demand per second and deviation below the sweet point: at a gain of
# 16 deviations per demand (four times the usual one) what is left to the sweet point, 1 / 16 of
# demand per deviation, is used up after a dead time of 1.4 s and not before.
_START_PER_S = 0.04
_FASTEST_PER_S = 0.5
# Nearer to its sweet point than this a service is not clear of it, and the loops alone decide.
_CLEAR = -0.25
# A deviation above this is a relapse and not noise around the sweet point.
_RELAPSE = 0.3
# A release of less demand than this within one run is the usual noise of a loop.
_LEAST_RUN = 0.1
# A relapse within this time after a fast release, or within the pause, is blamed on the release.
_SOON_NS = 20 * NS_PER_SEC
_FIRST_PAUSE_NS = 5 * NS_PER_SEC
_LONGEST_PAUSE_NS = 600 * NS_PER_SEC
# A window of a second shows a relapse this late: what was applied so long ago may have caused it.
_LATE_NS = 1_200_000_000


class Pace(NamedTuple):
    """The demand to release per second without the loops, and the least demand to leave."""

    speed_per_s: float
    least: float


class ReleasePace:
    """Decides in every tick how fast the demand of one channel is released."""

    __slots__ = (
        "_applied",
        "_backoff",
        "_deviation",
        "_least",
        "_lowest",
        "_ran_ns",
        "_reacted",
        "_relapse_ns",
        "_released",
        "_speed",
    )

    def __init__(self) -> None:
        self._deviation = LowPass()
        self._applied: deque[tuple[int, float]] = deque()
        self._speed = 0.0
        # Since the run began: the lowest deviation, whether it rose since then, what was released.
        self._lowest = 0.0
        self._reacted = False
        self._released = 0.0
        self._ran_ns: int | None = None
        self._relapse_ns: int | None = None
        self._backoff = Backoff(_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS)
        self._least = 0.0

    def update(self, applied: float, worst: float | None, now_ns: int, dt_s: float) -> Pace:
        """Return the pace at the demand *applied*.

        *worst* is the largest deviation, without limits, of the services that ask for the squeeze;
        ``None``: not known.
        """
        history = self._applied
        history.append((now_ns, applied))
        while history[0][0] < now_ns - _LATE_NS:
            history.popleft()
        if worst is None or applied <= 0.0:
            self._stop()
            return Pace(0.0, 0.0)
        smooth = self._deviation.update(worst, dt_s, SMOOTH_S)
        if worst > _RELAPSE:
            self._relapse(now_ns)
            return Pace(0.0, applied)
        if self._relapse_ns is not None and now_ns - self._relapse_ns < self._backoff.pause:
            self._stop()
            return Pace(0.0, self._least)
        worst = max(smooth, worst)
        if worst > _CLEAR:
            self._stop()
            return Pace(0.0, 0.0)
        self._set_speed(worst, dt_s)
        self._released += self._speed * dt_s
        if self._released > _LEAST_RUN:
            self._ran_ns = now_ns
        return Pace(self._speed, 0.0)

    def _set_speed(self, worst: float, dt_s: float) -> None:
        slow = min(_FASTEST_PER_S, -_START_PER_S * worst)
        if self._speed <= 0.0:
            self._lowest, self._reacted = worst, False
        self._reacted = self._reacted or has_risen(worst, self._lowest)
        self._lowest = min(self._lowest, worst)
        doubled = 0.0 if self._reacted else self._speed * 2.0**dt_s
        self._speed = min(_FASTEST_PER_S, max(slow, doubled))

    def _relapse(self, now_ns: int) -> None:
        """Take a suffering service; lengthen the pause if a fast release preceded."""
        self._stop()
        before, self._relapse_ns = self._relapse_ns, now_ns
        ran_ns, self._ran_ns = self._ran_ns, None
        if ran_ns is not None and now_ns - ran_ns < max(_SOON_NS, self._backoff.pause):
            self._backoff.next()
            self._least = max(applied for _, applied in self._applied)
        elif before is not None and now_ns - before > _SOON_NS + 4 * self._backoff.pause:
            self._backoff.reset()
            self._least = 0.0

    def _stop(self) -> None:
        self._speed = self._released = 0.0
