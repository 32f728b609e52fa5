# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The applied demand of a channel, which may rise and fall faster than its loops ask for."""

import math

from controller.core.loop.channel_loops import ChannelLoops
from controller.core.loop.selector import Choice
from controller.core.pace.limiters import RateLimiter
from controller.core.pace.release import ReleasePace
from controller.core.pace.rise import RisePace
from controller.core.settings import KnobLimits

__all__ = ("PacedLimiter",)


class PacedLimiter(RateLimiter):
    """The applied demand of a channel, at a ``RisePace`` and a ``ReleasePace``."""

    __slots__ = ("_pace", "_rise")

    def __init__(self) -> None:
        super().__init__()
        self._pace = ReleasePace()
        self._rise = RisePace()

    def rise(self, choice: Choice, loops: ChannelLoops, limits: KnobLimits, dt_s: float) -> Choice:
        """Return *choice* with the demand that is added to it without the loops.

        No more is added than is applied in this tick: the loops' demands would run away from it.
        """
        worst = loops.unmet if self.applied > 0.0 else None
        most = min(1.0, self.applied + limits.squeeze_per_s * dt_s)
        extra = min(self._rise.update(worst, dt_s) * dt_s, most - choice.wanted)
        if extra <= 0.0 or choice.wanted < self.applied:
            return choice
        loops.shift(extra)
        return choice._replace(wanted=choice.wanted + extra)

    def let_go(self, choice: Choice, loops: ChannelLoops) -> Choice:
        """Fall at once to the largest demand of use; return *choice* within it."""
        most = loops.most
        if most is None or self.applied <= most:
            return choice
        loops.shift(most - self.applied)
        self.set(most)
        return choice._replace(wanted=min(choice.wanted, most))

    def limit_paced(
        self,
        wanted: float,
        loops: ChannelLoops,
        limits: KnobLimits,
        now_ns: int,
        dt_s: float,
        rungs: int = 1,
        fastest_per_s: float = math.inf,
    ) -> float:
        """Move the applied demand towards *wanted* in [0, 1] as ``limit`` does, or faster.

        What is released without the loops is taken from their demands as well, without a bump.
        *rungs* is the number of rungs that the demand is divided among: each has a part of it, so
        the same release of a knob is a smaller one of the demand. No more than *fastest_per_s* is
        released without the loops.
        """
        pace = self._pace.update(self.applied, loops.excess, now_ns, dt_s)
        if self.applied >= pace.least > wanted:
            wanted = pace.least
        extra = min(pace.speed_per_s, fastest_per_s) * dt_s / rungs
        if extra > 0:
            loops.shift(-extra)
            wanted = max(0.0, wanted - extra)
        return self.limit(wanted, limits, now_ns, dt_s, extra)
