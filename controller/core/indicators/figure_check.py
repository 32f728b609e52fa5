# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the figure of a service moves as its work does: a wrong figure must not steer.

A source may begin to answer in another unit, or for another service. A figure that is suddenly
several times larger or smaller, while the service does the same work in the same time, is wrong.
"""

import math

from controller.core.indicators.slowdown import Pace
from controller.core.units import NS_PER_SEC

__all__ = ("FigureCheck",)

# What is usual is an average over this time, what is now over that one.
_USUAL_S, _NOW_S = 30.0, 2.0
# Nothing is judged before the usual values are known for so long.
_KNOWN_S = 20.0
# The figure of a loaded service follows its work steeply: 5 % more time or load allow 2.7 times
# the figure. Beyond this it may move by the factor 4 by itself, and a wrong figure is
# right again within the factor 2 of the usual one.
_STEEP = 20.0
_FREE, _BACK = math.log(4.0), math.log(2.0)
# After this time the figure is taken as it is: the service has changed in a way not seen here.
_LONGEST_NS = 600 * NS_PER_SEC


class FigureCheck:
    """The usual figure and pace of one service; ``wrong`` since a figure that cannot be right."""

    __slots__ = ("_figure", "_known_s", "_load", "_since_ns", "_slowdown")

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._figure = 0.0
        # Usual and present values.
        self._slowdown = [0.0, 0.0]
        self._load = [0.0, 0.0]
        self._known_s = 0.0
        self._since_ns: int | None = None

    @property
    def wrong(self) -> bool:
        """Whether the last figure contradicts the pace of the service."""
        return self._since_ns is not None

    def update(self, value: float, pace: Pace, now_ns: int, dt_s: float) -> None:
        """Take the figure *value* (above 0) and the pace of one tick of *dt_s*."""
        figure = math.log(value)
        if self._known_s == 0.0:
            self._figure = figure
            self._slowdown, self._load = [pace.slowdown] * 2, [pace.load] * 2
        for known, now in ((self._slowdown, pace.slowdown), (self._load, pace.load)):
            known[1] += min(1.0, dt_s / _NOW_S) * (now - known[1])
        moved = abs(figure - self._figure)
        if self._since_ns is None:
            with_work = sum(abs(known[1] - known[0]) for known in (self._slowdown, self._load))
            if self._known_s >= _KNOWN_S and moved > _FREE + _STEEP * with_work:
                self._since_ns = now_ns
        elif moved < _BACK:
            self._since_ns = None
        elif now_ns - self._since_ns > _LONGEST_NS:
            self._forget()
        if self._since_ns is None:
            self._known_s += dt_s
            weight = min(1.0, dt_s / min(_USUAL_S, self._known_s))
            self._figure += weight * (figure - self._figure)
            for known in (self._slowdown, self._load):
                known[0] += weight * (known[1] - known[0])
