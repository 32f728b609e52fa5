# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a squeeze rises that has brought nothing yet.

A loop integrates the deviation, so a service that suffers a little waits for its whole range: at
a deviation of 0.4 that is a minute and a half for a ladder whose first knobs do not help, because
the harm is of another kind. So the demand rises ever faster for as long as a service suffers and
does not react, and where it reacts, the loops decide again.
"""

from controller.core.loop.pid import LowPass
from controller.core.loop.reaction import has_fallen

__all__ = ("RisePace",)

# From this deviation on a service suffers beyond noise.
_SUFFERS = 0.25
# Twice as long as elsewhere: a rise adds to what the loops do, and noise would pump the two up.
_SMOOTH_S = 2.0
# What the loops do by themselves shows after a window and the average.
_PATIENCE_S = 3.0
# Demand per second at first. It doubles in about the time in which a change shows, so that what is
# added before a reaction is seen is not much more than what was needed.
_START_PER_S = 0.02
_DOUBLED_S = 2.0
_FASTEST_PER_S = 0.25


class RisePace:
    """Decides in every tick how fast the demand of one channel rises without the loops."""

    __slots__ = ("_deviation", "_highest", "_speed", "_waited_s")

    def __init__(self) -> None:
        self._deviation = LowPass()
        self._highest = 0.0
        self._waited_s = 0.0
        self._speed = 0.0

    def update(self, worst: float | None, dt_s: float) -> float:
        """Return the demand to add per second.

        *worst* is the largest deviation, without limits, of the services that ask for the squeeze;
        ``None``: none asks, or it is not known.
        """
        if worst is None:
            self._deviation = LowPass()
            return self._stop(0.0)
        smooth = self._deviation.update(worst, dt_s, _SMOOTH_S)
        if smooth < _SUFFERS or has_fallen(smooth, self._highest):
            return self._stop(smooth)
        self._highest = max(self._highest, smooth)
        self._waited_s += dt_s
        if self._waited_s > _PATIENCE_S:
            faster = max(_START_PER_S, self._speed * 2.0 ** (dt_s / _DOUBLED_S))
            self._speed = min(_FASTEST_PER_S, faster)
        return self._speed

    def _stop(self, smooth: float) -> float:
        self._highest, self._waited_s, self._speed = max(0.0, smooth), 0.0, 0.0
        return 0.0
