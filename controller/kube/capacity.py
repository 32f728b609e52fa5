# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reclaimable capacity: the amount of a node that a scheduler may give to best-effort pods.

It is the capacity of the node, less a reserve, less the peak of what all other work used. The use
is measured; what pods requested does not count. While best-effort is squeezed the amount is at most
what the squeeze leaves, because a pod could not use more. It may also be limited to what a forecast
of the other work leaves.

Of the forecast each of the 168 hours of a week has a histogram of past use. The weight of this past
is halved whenever the hour returns, so the half-life is seven days. The hours are those of UTC:
only that they return matters, not what they are called. Where daylight saving time moves the load
by an hour, higher use is known a week later, and former use fades within five weeks.

The time of day names an hour, and no more: fading counts returns of the hour, and durations are
measured on the monotonic clock. So a clock that was set can spoil one hour at most.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from controller.config.sections.kubernetes_capacity import ReclaimLimits
from controller.core.limiters import Headroom, smoothing
from controller.core.model import CgroupId, QosClass, Snapshot, Workload
from controller.core.units import NS_PER_SEC

__all__ = (
    "Expected",
    "Forecast",
    "ForecastRecord",
    "NonBestEffortUse",
    "Reclaimable",
)

# Pods stay for minutes. Bursts of a service that are shorter than this are left to the squeeze.
# Measurements that are older do not justify an offer.
_SMOOTH_NS = 10 * NS_PER_SEC
_HOUR_NS = 3600 * NS_PER_SEC
_WEEK = 7 * 24
# One per cent of the node each: a fifth of the change from which an offer is published. With
# buckets of 2 % the simulated offers were 1 % less (tests/sim/test_forecast.py).
_BUCKETS = 100
# A use is expected that is exceeded in one part of so many, that is the 95th percentile. The 98th
# took 2 % more of the simulated offers and saved no more squeezes.
_ABOVE = 20
# A gap or a step of the clock up to this long cannot move the percentile of an hour by itself.
_SLIP_NS = _HOUR_NS // _ABOVE

_Seconds = Mapping[int, int]  # by the number of the bucket


class Expected(NamedTuple):
    """An expected use as a part of the capacity, and the weight of it in an offer, 0 to 1."""

    use_ratio: float
    weight: float


class ForecastRecord(NamedTuple):
    """The state of a forecast in plain types, to be kept across restarts.

    ``hours`` were measured, ``judged`` of them had been forecast, and of these ``broken`` had more
    use than forecast and reserve. ``cells`` are the hours of the week, the first one that of
    Thursday 00:00 UTC, each as pairs of a bucket and the seconds of use in it.
    """

    hours: int = 0
    judged: int = 0
    broken: int = 0
    cells: tuple[tuple[tuple[int, int], ...], ...] = ((),) * _WEEK

    @property
    def is_sane(self) -> bool:
        """Whether all numbers are in range: a damaged file must not lead to a crash."""
        return (
            0 <= self.broken <= self.judged <= self.hours <= 1 << 53
            and len(self.cells) == _WEEK
            and all(len(cell) <= _BUCKETS for cell in self.cells)
            and all(
                0 <= bucket < _BUCKETS and 0 < seconds <= 1 << 20
                for cell in self.cells
                for bucket, seconds in cell
            )
        )


class Forecast:
    """The part of a resource of the node that all work but best-effort is expected to use soon.

    ``hours``, ``judged`` and ``broken``: see ``ForecastRecord``.

    :param reserve_ratio: the part of the capacity that is never offered. A use beyond the forecast
        that fits into it takes nothing from best-effort pods.
    :param past: the record of an earlier forecast; it must be sane.
    """

    def __init__(self, reserve_ratio: float, past: ForecastRecord | None = None) -> None:
        past = past or ForecastRecord()
        self._reserve_ratio = reserve_ratio
        self._cells: list[_Seconds] = [dict(cell) for cell in past.cells]
        self.hours, self.judged, self.broken = past.hours, past.judged, past.broken
        self._begin(0, 0)

    def _begin(self, hour: int, offset_ns: int) -> None:
        self._hour, self._offset_ns = hour, offset_ns
        self._last_ns: int | None = None
        self._current_ns: dict[int, int] = {}

    def update(self, now_ns: int, wall_ns: int, use_ratio: float) -> bool:
        """Take the use since the last call; return whether an hour was completed.

        An hour that was measured for less than half of it, or in which the clock was set by more
        than three minutes, is left out.

        :param now_ns: the monotonic time.
        :param wall_ns: the time of day in ns since 1970, UTC.
        :param use_ratio: what all work but best-effort used, as a part of the capacity.
        """
        hour, offset_ns = wall_ns // _HOUR_NS, wall_ns - now_ns
        was_set = abs(offset_ns - self._offset_ns) > _SLIP_NS
        completed = False
        if was_set or hour != self._hour:
            completed = not was_set and self._end_hour()
            self._begin(hour, offset_ns)
        passed_ns = 0 if self._last_ns is None else now_ns - self._last_ns
        self._last_ns = now_ns
        bucket = max(0, min(_BUCKETS - 1, int(use_ratio * _BUCKETS)))
        passed_ns = max(0, min(_SLIP_NS, passed_ns))
        self._current_ns[bucket] = self._current_ns.get(bucket, 0) + passed_ns
        return completed

    def _end_hour(self) -> bool:
        if sum(self._current_ns.values()) < _HOUR_NS // 2:
            return False
        used, expected = _percentile(self._current_ns), self._use_ratio(self._hour)
        self.hours += 1
        if used is not None and expected is not None:
            self.judged += 1
            self.broken += used > expected + self._reserve_ratio
        number = self._hour % _WEEK
        cell = Counter({bucket: s // 2 for bucket, s in self._cells[number].items()})
        cell.update({bucket: ns // NS_PER_SEC for bucket, ns in self._current_ns.items()})
        self._cells[number] = {bucket: s for bucket, s in cell.items() if s}
        return True

    def _use_ratio(self, hour: int) -> float | None:
        """Return the use in *hour* since 1970; in a first week that of the same hour of any day."""
        if cell := self._cells[hour % _WEEK]:
            return _percentile(cell)
        days: Counter[int] = Counter()
        for number in range(hour % 24, _WEEK, 24):
            days.update(self._cells[number])
        return _percentile(days)

    def expected(self, wall_ns: int, hold_ns: int = _HOUR_NS // 2) -> Expected | None:
        """Return the highest use in the hours from *wall_ns* to *hold_ns* later.

        So long a pod should keep what it was offered. The use of an hour is that of its height, so
        half an hour looks 30 to 90 minutes ahead: about the median life of a pod in the simulation.
        The weight grows over the first week that was measured. ``None``: no day had such an hour.
        """
        highest = 0.0
        for hour in range(wall_ns // _HOUR_NS, (wall_ns + hold_ns) // _HOUR_NS + 1):
            use_ratio = self._use_ratio(hour)
            if use_ratio is None:
                return None
            highest = max(highest, use_ratio)
        return Expected(highest, min(1.0, self.hours / _WEEK))

    @property
    def record(self) -> ForecastRecord:
        """The record from which an equal forecast is restored, without the hour that has begun."""
        cells = tuple(tuple(cell.items()) for cell in self._cells)
        return ForecastRecord(self.hours, self.judged, self.broken, cells)


def _percentile(parts: _Seconds) -> float | None:
    """Return the upper edge of the bucket with the percentile; ``None`` without data."""
    total, above = sum(parts.values()), 0
    for bucket in sorted(parts, reverse=True):
        above += parts[bucket]
        if above * _ABOVE > total:
            return (bucket + 1) / _BUCKETS
    return None


class Reclaimable:
    """The reclaimable amount of one resource of the node, in that resource's unit.

    ``amount`` falls at once and rises slowly, from 0 at the start, because the past use of the
    services is not known then. It is never less than what the best-effort pods of the node were
    granted, so that no pod loses what it was promised. The capacity of the node limits that,
    because a pod that names its node itself may request any amount. ``amount`` is 0 while
    ``stale``, that is without recent measurements. ``used`` is what all work but best-effort uses,
    as a mean over ten seconds; ``None`` while ``stale``.
    """

    __slots__ = ("_headroom", "_last_ns", "_limits", "amount", "stale", "used")

    def __init__(self, limits: ReclaimLimits) -> None:
        self._limits = limits
        self._start()

    def _start(self) -> None:
        self.used: float | None = None
        self._last_ns: int | None = None
        rise_s = self._limits.rise_ns / NS_PER_SEC
        self._headroom = Headroom(0.0, self._limits.peak_ns, rise_s)
        self.amount = 0.0
        self.stale = True

    def update(
        self,
        now_ns: int,
        capacity: float,
        others: float | None,
        granted: float,
        squeezed_to: float | None = None,
        expected: Expected | None = None,
    ) -> float:
        """Return ``amount`` at *now_ns*.

        :param capacity: what the node has.
        :param others: what all work but best-effort uses now; ``None``: not measurable.
        :param granted: the sum of the requests of the node's best-effort pods.
        :param squeezed_to: the limit of best-effort in this tick; ``None``: it is not limited.
        :param expected: the use that is expected soon; ``None``: it does not count.
        """
        available = capacity * (1.0 - self._limits.reserve_ratio)
        if others is None:
            if self._last_ns is None or now_ns - self._last_ns > _SMOOTH_NS:
                self._start()
                return self.amount
        else:
            dt_s = 0.0 if self._last_ns is None else max(0, now_ns - self._last_ns) / NS_PER_SEC
            self._last_ns = now_ns
            before = others if self.used is None else self.used
            self.used = before + smoothing(dt_s, _SMOOTH_NS / NS_PER_SEC) * (others - before)
            self._headroom.update(now_ns, dt_s, available, self.used)
            if squeezed_to is not None:
                self._headroom.lower_to(squeezed_to)
            self.stale = False
        offer = self._headroom.amount
        if expected is not None:
            left = max(0.0, available - expected.use_ratio * capacity)
            offer += expected.weight * (min(offer, left) - offer)
        self.amount = 0.0 if self.stale else max(min(granted, capacity), offer)
        return self.amount


class NonBestEffortUse:
    """CPUs used by all work but best-effort, from the counters of two snapshots."""

    __slots__ = ("_before", "_counters")

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._counters: dict[CgroupId, int] = {}

    def update(
        self, snapshot: Snapshot, workloads: tuple[Workload, ...], oldest_ns: int
    ) -> float | None:
        """Return the mean since the last call; ``None`` without two snapshots of fresh data.

        A workload that was added since then is counted from the next call on. Data older than
        *oldest_ns* is not fresh.
        """
        before, self._before = self._before, None
        known, self._counters = self._counters, {}
        if snapshot.age_ns is None or snapshot.age_ns > oldest_ns:
            return None
        others = {w.cgroup for w in workloads if w.qos is not QosClass.BE}
        self._before = snapshot
        self._counters = {
            sample.cgroup: sample.oncpu_ns
            for sample in snapshot.workloads
            if sample.oncpu_ns is not None and sample.cgroup in others
        }
        if before is None or before.system_oncpu_ns is None or snapshot.system_oncpu_ns is None:
            return None
        dt_ns = snapshot.time_ns - before.time_ns
        if dt_ns <= 0:
            return None
        ran_ns = max(0, snapshot.system_oncpu_ns - before.system_oncpu_ns)
        ran_ns += max(0, (snapshot.unknown_oncpu_ns or 0) - (before.unknown_oncpu_ns or 0))
        for cgroup, count in self._counters.items():
            ran_ns += max(0, count - known.get(cgroup, count))
        return ran_ns / dt_ns
