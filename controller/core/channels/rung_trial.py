# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a quota alone protects a service, or the other rungs of its ladder come first.

The first rungs of the cache channel, cache ways and memory bandwidth, limit all best-effort work
together; the quota limits the workloads that hurt, once they are known. So a squeeze begins with
the quota alone. If the quota is at its stop or the service suffers again, the other rungs come
first. After a pause the quota alone is tried again, ever less often while that fails.

Such a trial begins with a stricter quota than it is likely to need: the service must not pay for
it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from controller.core.channels.ladder import AT_STOP
from controller.core.loop.pid import LowPass
from controller.core.loop.reaction import SMOOTH_S, Backoff
from controller.core.model import Knob

__all__ = ("Front", "RungTrial")

# A smoothed deviation above this for so long, or a quota at its stop, shows that a quota is not
# enough; with one of at most the other the service is well.
_BAD, _BAD_S, _WELL = 0.4, 0.4, 0.15
# So long the service may still suffer from what began the squeeze, or the quota may be at its stop.
_STOPPED_S = 8.0
# After so long without a squeeze the next one is another one.
_FORGET_S = 30.0
# The part of the quota's range with which a trial begins.
_FIRST_PART = 0.4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 300.0, 3600.0


class Front(NamedTuple):
    """The rungs in front of the quota.

    ``knobs`` are those that can be moved now, empty if the quota cannot; ``limited``: one of them
    is; ``short``: all are at their stops, and the quota had to begin.
    """

    knobs: frozenset[Knob] = frozenset()
    limited: bool = False
    short: bool = False


@dataclass(slots=True)
class RungTrial:
    """The trial of one ladder, whose last rung is the quota.

    ``spared``: the knobs that are left free. ``demand``: the demand to set in this tick, because
    ``spared`` changed during a squeeze, else ``None``. ``report`` is the sentence of such a tick,
    else empty.
    """

    spared: frozenset[Knob] = frozenset()
    demand: float | None = None
    report: str = ""
    # The demand that the other rungs are put back with.
    _left: float = 0.0
    # Seconds: until the quota alone may be tried, without a squeeze, since ``spared`` changed, and
    # of these bad ones without a break.
    _wait_s: float = 0.0
    _free_s: float = 0.0
    _since_s: float = 0.0
    _bad_s: float = 0.0
    # Whether the service was well since ``spared`` changed, or had the time for that.
    _settled: bool = False
    _deviation: LowPass = field(default_factory=LowPass)
    _backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S))

    def update(self, front: Front, applied: float, deviation: float | None, dt_s: float) -> None:
        """Take one tick of *dt_s* with the demand *applied*.

        *deviation* is the largest of the services that ask for the squeeze, or of all if none asks;
        ``None`` without a squeeze, or without data.
        """
        self.demand, self.report = None, ""
        self._wait_s -= dt_s
        if deviation is None:
            self._free_s += dt_s
            if self._free_s > _FORGET_S or not self.spared:
                self._spare(front.knobs if self._wait_s <= 0 else frozenset())
                self._left = 1.0 / (len(self.spared) + 1)
            return
        self._free_s = 0.0
        self._since_s += dt_s
        smooth = self._deviation.update(deviation, dt_s, SMOOTH_S)
        if not self.spared:
            if front.limited and self._wait_s <= 0 and (smooth <= _WELL or front.short):
                self._left, self.demand = applied, _FIRST_PART
                self._spare(front.knobs)
                self.report = f"{self._names} let go on trial: whether a quota alone protects"
            return
        stopped = applied >= AT_STOP and self._since_s > _STOPPED_S
        self._bad_s = self._bad_s + dt_s if smooth > _BAD or stopped else 0.0
        # A squeeze begins because the service suffers; that it ends takes a moment.
        self._settled = self._settled or self._since_s > _STOPPED_S or smooth <= _WELL
        if self._bad_s > _BAD_S and self._settled:
            self._put_others_first()

    def _put_others_first(self) -> None:
        if self._since_s > self._backoff.pause:
            self._backoff.reset()  # the quota alone was enough for longer than it was not tried
        self._wait_s = self._backoff.next()
        self.report = (
            f"{self._names} limited first: the service suffers with a quota alone, "
            f"tried again in {self._wait_s:.0f} s"
        )
        self.demand = self._left
        self._spare(frozenset())

    def _spare(self, knobs: frozenset[Knob]) -> None:
        self.spared = knobs
        self._since_s = self._bad_s = 0.0
        self._settled = False
        self._deviation = LowPass()

    @property
    def _names(self) -> str:
        return " and ".join(sorted(self.spared))
