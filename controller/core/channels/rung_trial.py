# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which rungs of a ladder protect a service at the least cost of best-effort work.

The first rungs of the cache channel, cache ways and memory bandwidth, limit all best-effort work
together; the quota limits the workloads that hurt, once they are known. Which of them leaves more
work depends on the harm, so it is found out:

- A squeeze begins with the quota alone. If the service suffers again, the other rungs come first.
- After a calm time, or if the other rungs are at their stops and the quota is needed as well, they
  are let go on trial and the quota takes over. If the work is more it stays so; otherwise the rungs
  are put back, and it is tried again ever less often.

In a trial the quota moves first, to a stricter setting than it is likely to need: the service must
not pay for it. Work is counted in instructions, because the CPU time of a workload does not fall
when its memory is throttled.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
import math
from typing import NamedTuple

from controller.core.channels.ladder import AT_STOP
from controller.core.loop.pid import LowPass
from controller.core.loop.reaction import SMOOTH_S, Backoff
from controller.core.model import CgroupId, Knob, WorkloadSample

__all__ = ("Counts", "Front", "RungTrial", "count")

# Work and deviation are averaged over windows of this length, before and during a trial.
_WINDOW_S = 10.0
# A trial begins after so many windows in which the service was well and all did the same work, or
# after one in which the other rungs were at their stops and the quota was needed as well.
_CALM_WINDOWS = 3
# Work and loads of services that differ by a larger part are not compared.
_ALIKE = 0.1
# A demand below this moves the other rungs so little that they cost next to nothing.
_LEAST_DEMAND = 0.05
# A mean deviation of at most this, up or down, is that of a loop that holds its sweet point.
_WELL = 0.15
# Time for the quota to find its place, and up to three times as long while the service has slack.
# After so long without a squeeze a result is forgotten.
_SETTLED_S = 30.0
# The part of the quota's range with which a trial begins.
_FIRST_PART = 0.4
# The quota is released no faster than this without the loops.
_TRIED_PER_S = 0.02
# A deviation above this, or a quota at its stop, for so long, shows that a quota is not enough.
_BAD, _BAD_S = 0.4, 0.4
_STOPPED_S = 8.0
# More work than this part is better.
_BETTER = 1.01
# Less work than this part, while the quota still finds its place, ends a trial.
_HOPELESS = 0.7
# A result is used for half of the longest pause.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 300.0, 3600.0


class Counts(NamedTuple):
    """Instructions so far: of each best-effort workload, and of all services together."""

    batch: Mapping[CgroupId, int]
    services: int


def count(samples: Iterable[WorkloadSample], best_effort: Collection[CgroupId]) -> Counts:
    """Return the instructions of *samples*, as far as they were counted."""
    batch: dict[CgroupId, int] = {}
    services = 0
    for each in samples:
        if each.instructions is None:
            continue
        if each.cgroup in best_effort:
            batch[each.cgroup] = each.instructions
        else:
            services += each.instructions
    return Counts(batch, services)


class Front(NamedTuple):
    """The rungs in front of the quota.

    ``knobs`` are those that can be moved now, empty if the quota cannot; ``limited``: one of them
    is; ``short``: all are at their stops, and the quota had to begin.
    """

    knobs: frozenset[Knob] = frozenset()
    limited: bool = False
    short: bool = False


class _State(Enum):
    FIRST = "first"  # from the beginning of a squeeze
    WATCHED = "watched"  # the other rungs are in front of the quota
    TRIED = "tried"
    KEPT = "kept"


class _Work(NamedTuple):
    """Instructions per second in a window, and the mean deviation."""

    batch: Mapping[CgroupId, float]
    services: float
    deviation: float

    @property
    def total(self) -> float:
        return sum(self.batch.values())

    def is_like(self, other: "_Work") -> bool:
        """Whether each workload did about as much as in *other*."""
        keys = {**self.batch, **other.batch}  # no set: sums must not depend on hashing
        moved = sum(abs(self.batch.get(each, 0.0) - other.batch.get(each, 0.0)) for each in keys)
        return moved <= _ALIKE * other.total and self.has_load_of(other)

    def has_load_of(self, other: "_Work") -> bool:
        return abs(self.services - other.services) <= _ALIKE * other.services


@dataclass(slots=True)
class _Window:
    """Some time over which work and deviation are averaged, from the counts ``before`` it."""

    before: Counts | None = None
    deviation: float = 0.0
    seconds: float = 0.0

    def add(self, deviation: float, count_now: Callable[[], Counts], dt_s: float) -> _Work | None:
        """Take one tick; return the result at the end of a window, after which the next begins."""
        before = self.before
        if before is None:
            self.before = count_now()
            return None
        self.deviation += deviation * dt_s
        self.seconds += dt_s
        if self.seconds < _WINDOW_S:
            return None
        now, seconds = count_now(), self.seconds
        batch = {
            each: max(0, instructions - before.batch[each]) / seconds
            for each, instructions in now.batch.items()
            if each in before.batch
        }
        services = max(0, now.services - before.services) / seconds
        work = _Work(batch, services, self.deviation / seconds)
        self.before, self.deviation, self.seconds = now, 0.0, 0.0
        return work


@dataclass(slots=True)
class RungTrial:
    """The trial of one ladder, whose last rung is the quota.

    ``spared``: the knobs that are left free. ``demand``: the demand to set in this tick, because
    ``spared`` changed, ``None`` without a change. ``sufficed``: the knobs that a trial lets go were
    enough without the quota. ``report`` is the sentence of a tick in which the trial began or
    ended, else empty.
    """

    spared: frozenset[Knob] = frozenset()
    demand: float | None = None
    report: str = ""
    sufficed: bool = False
    _state: _State = _State.WATCHED
    # Seconds: until a trial may begin, until a squeeze may begin with the quota, without a squeeze,
    # in this state, and of these bad ones without a break.
    _wait_s: float = 0.0
    _first_wait_s: float = 0.0
    _free_s: float = 0.0
    _since_s: float = 0.0
    _bad_s: float = 0.0
    _backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S))
    # The demand that the other rungs are put back with, and the work in the last window with them.
    _left: float = 0.0
    _before: _Work | None = None
    _window: _Window = field(default_factory=_Window)
    _deviation: LowPass = field(default_factory=LowPass)
    _calm: int = 0
    _short: bool = False
    _settled: bool = False

    @property
    def active(self) -> bool:
        """Whether it is being tried how a quota alone does."""
        return self._state is _State.TRIED

    @property
    def fastest_per_s(self) -> float:
        """The most demand that may be released per second without the loops."""
        return _TRIED_PER_S if self.active else math.inf

    def _enter(self, state: _State) -> None:
        self._state = state
        self._calm = 0
        if state is _State.WATCHED:
            self._before = None
        self._since_s = self._bad_s = 0.0
        self._short = self._settled = False
        self._deviation = LowPass()
        self._window = _Window()

    def update(
        self,
        front: Front,
        applied: float,
        deviation: float | None,
        count_now: Callable[[], Counts],
        dt_s: float,
    ) -> None:
        """Take one tick of *dt_s* with the demand *applied*.

        *deviation* is the largest of the services that ask for the squeeze, or of all if none asks;
        ``None`` without a squeeze, or without data.
        """
        self.demand = None
        self.report = ""
        self._wait_s -= dt_s
        self._first_wait_s -= dt_s
        if deviation is None:
            self._wait(front, dt_s)
            return
        self._free_s = 0.0
        self._since_s += dt_s
        smooth = self._deviation.update(deviation, dt_s, SMOOTH_S)
        stopped = bool(self.spared) and applied >= AT_STOP and self._since_s > _STOPPED_S
        self._bad_s = self._bad_s + dt_s if smooth > _BAD or stopped else 0.0
        bad = self._bad_s > _BAD_S
        if self._state is _State.WATCHED:
            if not front.limited or (bad and not front.short):
                self._enter(_State.WATCHED)
            else:
                self._watch(front, applied, deviation, count_now, dt_s)
        elif self._state is _State.FIRST:
            # A squeeze begins because the service suffers; that it ends takes a moment.
            self._settled = self._settled or self._since_s > _STOPPED_S or smooth <= _WELL
            if bad and self._settled:
                self._put_others_first()
        elif bad:
            self._fail("the service suffers")
        elif self._state is _State.KEPT:
            if self._since_s > _LONGEST_PAUSE_S / 2:
                self._backoff.reset()
                self.report = f"{self._names} put back, to compare the work again"
                self._put_back()
        elif self._since_s > _SETTLED_S and (work := self._window.add(deviation, count_now, dt_s)):
            self._judge(work)

    def _wait(self, front: Front, dt_s: float) -> None:
        """Forget a result after some time without a squeeze, and choose how the next one begins."""
        self._window = _Window()
        self._free_s += dt_s
        if self._free_s <= _SETTLED_S and self._state is not _State.WATCHED:
            return
        first = bool(front.knobs) and max(self._first_wait_s, self._wait_s) <= 0
        self.spared = front.knobs if first else frozenset()
        self.sufficed = False
        self._enter(_State.FIRST if first else _State.WATCHED)

    def _put_others_first(self) -> None:
        self._left = 1.0 / (len(self.spared) + 1)
        self._first_wait_s = _FIRST_PAUSE_S
        self.report = f"{self._names} limited first: the service suffers with a quota alone"
        self._put_back()

    def _watch(
        self,
        front: Front,
        applied: float,
        deviation: float,
        count_now: Callable[[], Counts],
        dt_s: float,
    ) -> None:
        """Begin a trial after calm windows, or after one in which the rungs were not enough."""
        if front.short is not self._short:
            self._short = front.short
            self._window = _Window()
            return
        work = self._window.add(deviation, count_now, dt_s)
        if work is None:
            return
        before, self._before = self._before, work
        same = before is not None and work.is_like(before)
        self._calm = self._calm + 1 if same and work.deviation <= _WELL else 0
        is_calm = self._calm >= _CALM_WINDOWS - 1 and applied >= _LEAST_DEMAND
        if (is_calm or self._short) and self._wait_s <= 0 and work.total > 0:
            self._begin(front.knobs, applied)

    def _begin(self, others: frozenset[Knob], applied: float) -> None:
        self._left = applied
        self.spared, self.demand = others, _FIRST_PART
        self.sufficed = not self._short
        self.report = f"{self._names} let go on trial: whether a quota alone leaves more work"
        self._enter(_State.TRIED)

    def _judge(self, work: _Work) -> None:
        ended = self._since_s > 3 * _SETTLED_S
        settled = work.deviation > -_WELL or ended
        before = self._before
        assert before is not None
        gain = work.total / before.total
        if not work.has_load_of(before):
            self._fail("the load of the services changed")
        elif gain < (_BETTER if ended else _HOPELESS):
            self._fail(f"{gain:.2f} of the work")
        elif settled and gain >= _BETTER:
            self.report = f"{self._names} stay free: {gain:.2f} of the work with a quota alone"
            self._enter(_State.KEPT)

    def _fail(self, why: str) -> None:
        self._wait_s = self._backoff.next()
        self.report = (
            f"{self._names} put back ({why} with a quota alone), tried again in "
            f"{self._backoff.pause:.0f} s"
        )
        self._put_back()

    def _put_back(self) -> None:
        self.spared, self.demand = frozenset(), self._left
        self._enter(_State.WATCHED)

    @property
    def _names(self) -> str:
        return " and ".join(sorted(self.spared))
