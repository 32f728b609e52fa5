# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The applied demand of a channel, which may rise and fall faster than its loops ask for.

*Rise*: a loop integrates the deviation, so a service that suffers a little waits for its whole
range. At a deviation of 0.4 that is a minute and a half for a ladder whose first knobs do not help,
because the harm is of another kind. So the demand rises ever faster for as long as a service
suffers and does not react, and where it reacts, the loops decide again.

*Release*: under a full squeeze nothing shows whether the harm has ended or is only held down. The
release finds out: it starts at a speed at which even a plant of four times the usual gain reaches
the sweet point slowly, and the speed doubles every second for as long as the service does not
react. Where the service reacts, the loops decide again. Where it suffers soon after a fast release,
the level that was left is the last one that was safe: the demand stays there for a while that
doubles.
"""

from collections import deque
from dataclasses import dataclass, field, replace
import math
from typing import NamedTuple

from controller.core.decision import Demand
from controller.core.limiters import (
    HOLD_NS,
    NEAR,
    PATIENCE_S,
    SMOOTH_S,
    SUFFERS,
    UNMET,
    Backoff,
    LowPass,
    has_fallen,
    has_risen,
)
from controller.core.loop.channel_loops import ChannelLoops
from controller.core.settings import KnobLimits
from controller.core.units import NS_PER_SEC

__all__ = ("PacedLimiter", "ReleasePace", "RisePace")

# The speed of a release in its first second, in demand per second and deviation below the sweet
# point: at a gain of 16 deviations per demand (four times the usual one) what is left to the sweet
# point, 1 / 16 of demand per deviation, is used up after a dead time of 1.4 s and not before.
_RELEASE_PER_S = 0.04
# A rise begins with half of it per second, and ends at half of this: it adds to what the loops do.
_FASTEST_RELEASE_PER_S = 0.5
# A window of a second shows a relapse this late: what was applied so long ago may have caused it.
_LATE_NS = 1_200_000_000


@dataclass(slots=True)
class RisePace:
    """Decides in every tick how fast the demand of one channel rises without the loops."""

    _deviation: LowPass = field(default_factory=LowPass)
    _highest: float = 0.0
    _waited_s: float = 0.0
    _speed: float = 0.0

    def update(self, worst: float | None, dt_s: float) -> float:
        """Return the demand to add per second.

        *worst* is the largest deviation, without limits, of the services that ask for the squeeze;
        ``None``: none asks, or it is not known.
        """
        if worst is None:
            self._deviation = LowPass()
            return self._stop(0.0)
        # Twice as smooth as elsewhere: noise would pump the rise and the loops up.
        smooth = self._deviation.update(worst, dt_s, 2 * SMOOTH_S)
        if smooth < SUFFERS or has_fallen(smooth, self._highest):
            return self._stop(smooth)
        self._highest = max(self._highest, smooth)
        self._waited_s += dt_s
        if self._waited_s > PATIENCE_S:  # what the loops do by themselves shows now
            # Doubled in about the time in which a change shows, so that what is added before a
            # reaction is seen is not much more than what was needed.
            faster = max(_RELEASE_PER_S / 2, self._speed * 2.0 ** (dt_s / (2 * SMOOTH_S)))
            self._speed = min(_FASTEST_RELEASE_PER_S / 2, faster)
        return self._speed

    def _stop(self, smooth: float) -> float:
        self._highest, self._waited_s, self._speed = max(0.0, smooth), 0.0, 0.0
        return 0.0


class Pace(NamedTuple):
    """The demand to release per second without the loops, and the least demand to leave."""

    speed_per_s: float
    least: float


@dataclass(slots=True)
class ReleasePace:
    """Decides in every tick how fast the demand of one channel is released."""

    _deviation: LowPass = field(default_factory=LowPass)
    _applied: deque[tuple[int, float]] = field(default_factory=deque)
    _speed: float = 0.0
    # Since the run began: the lowest deviation, whether it rose since then, what was released.
    _lowest: float = 0.0
    _reacted: bool = False
    _released: float = 0.0
    _ran_ns: float = -math.inf
    _relapse_ns: float = -math.inf
    _backoff: Backoff = field(default_factory=lambda: Backoff(5 * NS_PER_SEC, 600 * NS_PER_SEC))
    _least: float = 0.0

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
        if worst > UNMET:
            self._relapse(now_ns)
            return Pace(0.0, applied)
        if now_ns - self._relapse_ns < self._backoff.pause:
            self._stop()
            return Pace(0.0, self._least)
        worst = max(smooth, worst)
        if worst > -SUFFERS:  # not clear of the sweet point: the loops alone decide
            self._stop()
            return Pace(0.0, 0.0)
        self._set_speed(worst, dt_s)
        self._released += self._speed * dt_s
        if self._released > 2 * NEAR:  # less is the usual noise of a loop
            self._ran_ns = now_ns
        return Pace(self._speed, 0.0)

    def _set_speed(self, worst: float, dt_s: float) -> None:
        slow = min(_FASTEST_RELEASE_PER_S, -_RELEASE_PER_S * worst)
        if self._speed <= 0.0:
            self._lowest, self._reacted = worst, False
        self._reacted = self._reacted or has_risen(worst, self._lowest)
        self._lowest = min(self._lowest, worst)
        doubled = 0.0 if self._reacted else self._speed * 2.0**dt_s
        self._speed = min(_FASTEST_RELEASE_PER_S, max(slow, doubled))

    def _relapse(self, now_ns: int) -> None:
        """Take a suffering service; lengthen the pause if a fast release preceded it soon."""
        self._stop()
        before, self._relapse_ns = self._relapse_ns, now_ns
        ran_ns, self._ran_ns = self._ran_ns, -math.inf
        if now_ns - ran_ns < max(HOLD_NS, self._backoff.pause):
            self._backoff.next()
            self._least = max(applied for _, applied in self._applied)
        elif now_ns - before > HOLD_NS + 4 * self._backoff.pause:
            self._backoff.reset()
            self._least = 0.0

    def _stop(self) -> None:
        self._speed = self._released = 0.0


@dataclass(slots=True)
class PacedLimiter:
    """The applied demand of the channel of ``loops``, in [0, 1], limited in its rate of change.

    Towards a squeeze it moves fast, towards a release slowly, at a ``RisePace`` and a
    ``ReleasePace`` faster. A release step is made when a new period of ``release_spacing_ns``
    begins. These periods lie on a fixed grid of time. If they began with the last release, a little
    more deviation could shift a release in time and so give best-effort more for a moment.
    ``applied`` may be set without a limit, for instance to what the knobs could reach.
    """

    loops: ChannelLoops
    applied: float = 0.0
    _release: ReleasePace = field(default_factory=ReleasePace)
    _rise: RisePace = field(default_factory=RisePace)
    _last_ns: int | None = None

    def jump(self, applied: float) -> None:
        """Apply *applied* at once; the demands of the loops move as far."""
        self.loops.shift(applied - self.applied)
        self.applied = applied

    def let_go(self, choice: Demand) -> Demand:
        """Fall at once to the largest demand of use; return *choice* within it.

        None is of use where the services that suffer do so for another cause, or are paused.
        """
        most = 0.0 if self.loops.rules_out(choice) else self.loops.most
        if most is None or self.applied <= most:
            return choice
        self.jump(most)
        return replace(choice, wanted=min(choice.wanted, most))

    def move(
        self,
        choice: Demand,
        limits: KnobLimits,
        now_ns: int,
        dt_s: float,
        rungs: int = 1,
        fine: bool = True,
    ) -> Demand:
        """Move the applied demand towards *choice*, and return it with what rose without the loops.

        *rungs* is the number of rungs that the demand is divided among: each has a part of it, so
        the same release of a knob is a smaller one of the demand. Nothing is released without the
        loops if the knob is not *fine*.
        """
        if self.applied <= 0.0:
            # A tick that comes early begins a squeeze with as much as a usual one.
            dt_s = max(dt_s, self.loops.settings.tick_ns / 1e9)
        law = self.loops.settings.law
        if law.fast_rise:
            choice = self._raise(choice, limits, dt_s)
        extra, wanted = 0.0, choice.wanted
        if law.fast_release and fine:
            pace = self._release.update(self.applied, self.loops.excess, now_ns, dt_s)
            if self.applied >= pace.least > wanted:
                wanted = pace.least
            extra = pace.speed_per_s * dt_s / rungs
            if extra > 0:
                # Taken from the demands of the loops as well, without a bump.
                self.loops.shift(-extra)
                wanted = max(0.0, wanted - extra)
        spacing_ns = max(1, limits.release_spacing_ns)
        last_ns, self._last_ns = self._last_ns, now_ns
        may_release = last_ns is None or now_ns // spacing_ns != last_ns // spacing_ns
        if wanted >= self.applied:
            self.applied = min(wanted, self.applied + limits.squeeze_per_s * dt_s)
        elif may_release or extra > 0:
            step = limits.release_step if may_release else 0.0
            self.applied = max(wanted, self.applied - step - extra)
        return choice

    def _raise(self, choice: Demand, limits: KnobLimits, dt_s: float) -> Demand:
        """Return *choice* with the demand that is added to it without the loops.

        No more is added than is applied in this tick: the loops' demands would run away from it.
        """
        worst = self.loops.unmet if self.applied > 0.0 else None
        most = min(1.0, self.applied + limits.squeeze_per_s * dt_s)
        extra = min(self._rise.update(worst, dt_s) * dt_s, most - choice.wanted)
        if extra <= 0.0 or choice.wanted < self.applied:
            return choice
        self.loops.shift(extra)
        return replace(choice, wanted=choice.wanted + extra)
