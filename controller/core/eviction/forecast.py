# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Forecast: the part of a resource that all work but best-effort is expected to use soon.

Each of the 168 hours of a week has a histogram of past use. The weight of this past is halved
whenever the hour returns, so the half-life is seven days. The hours are those of UTC: only
that they return matters, not what they are called. Where daylight saving time moves the load by an
hour, higher use is known a week later, and former use fades within five weeks.

The time of day names an hour, and no more: fading counts returns of the hour, and durations are
measured on the monotonic clock. So a clock that was set can spoil one hour at most.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from controller.core.units import NS_PER_SEC

__all__ = ("Expected", "Forecast", "ForecastRecord")

_HOUR_NS = 3600 * NS_PER_SEC
_DAY, _WEEK = 24, 168
# One per cent of the node each: a fifth of the change from which an offer is published. With
# buckets of 2 % the simulated offers were 1 % less (tests/sim/test_forecast.py).
_BUCKETS = 100
# A use is expected that is exceeded in one part of so many, that is the 95th percentile. The 98th
# took 2 % more of the simulated offers and saved no more squeezes.
_ABOVE = 20
# Time for which a pod should keep what it was offered. The use of an hour is that of its height,
# so half an hour looks 30 to 90 minutes ahead: about the median life of a pod in the simulation.
_HOLD_NS = _HOUR_NS // 2
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
    """The forecast of one resource of the node.

    ``hours``, ``judged`` and ``broken``: see ``ForecastRecord``.

    :param reserve_ratio: the part of the capacity that is never offered. A use beyond the forecast
        that fits into it takes nothing from best-effort pods.
    :param past: the record of an earlier forecast; it must be sane.
    """

    __slots__ = (
        "_cells",
        "_current_ns",
        "_hour",
        "_last_ns",
        "_offset_ns",
        "_reserve_ratio",
        "broken",
        "hours",
        "judged",
    )

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
        for number in range(hour % _DAY, _WEEK, _DAY):
            days.update(self._cells[number])
        return _percentile(days)

    def expected(self, wall_ns: int, hold_ns: int = _HOLD_NS) -> Expected | None:
        """Return the highest use in the hours from *wall_ns* to *hold_ns* later.

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
