# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Windows of time by a calendar: from a time of certain days until the next time of another kind.

A window is a span and not a series of moments, so cron and its libraries do not fit: a pair of
cron expressions can be in two states for a week if one of them has a day more than the other.

Both ends are local times of a zone. On the day on which clocks are changed:

- A local time that is skipped stands for the first moment after the gap. So a window inside the
  gap is empty.
- A local time that comes twice stands for its first occurrence, at the beginning and at the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

__all__ = ("MAX_AHEAD_DAYS", "Window", "instant_s")

_ALL_WEEKDAYS = frozenset(range(7))
_ALL_DATES = frozenset(range(1, 32))
_ALL_MONTHS = frozenset(range(1, 13))
# How far the next begin is looked for. Each day costs 0.2 us if it does not match.
MAX_AHEAD_DAYS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Begins on each day that is in all three sets, and ends less than eight days later.

    ``from_min`` and ``until_min`` are minutes after midnight. The end is the first such time after
    the begin; with ``until_weekday`` the first on this day of the week. Monday is 0.
    """

    zone: tzinfo = UTC
    weekdays: frozenset[int] = _ALL_WEEKDAYS
    dates: frozenset[int] = _ALL_DATES
    months: frozenset[int] = _ALL_MONTHS
    from_min: int = 0
    until_min: int = 1440
    until_weekday: int | None = None

    def end_s(self, now_s: float) -> float | None:
        """Return when the window ends that contains *now_s*; ``None``: none does.

        Times are seconds since 1970. Of windows that overlap the last end counts.
        """
        today = datetime.fromtimestamp(now_s, self.zone).date()
        # A day more than a window is long, because clocks may be changed within it.
        longest = 2 if self.until_weekday is None else 9
        spans = self._spans(today - timedelta(longest), longest + 2)
        return max((end for begin, end in spans if begin <= now_s < end), default=None)

    def next_begin_s(self, now_s: float) -> float | None:
        """Return the first begin after *now_s*; ``None``: there is none within 400 days."""
        today = datetime.fromtimestamp(now_s, self.zone).date()
        spans = self._spans(today - timedelta(1), MAX_AHEAD_DAYS)
        return next((begin for begin, end in spans if now_s < begin < end), None)

    def _spans(self, first: date, days: int) -> Iterator[tuple[float, float]]:
        for ahead in range(days):
            day = first + timedelta(ahead)
            if (
                day.weekday() in self.weekdays
                and day.day in self.dates
                and day.month in self.months
            ):
                yield self._span(day)

    def _span(self, day: date) -> tuple[float, float]:
        midnight = datetime.combine(day, time())
        begin = midnight + timedelta(minutes=self.from_min)
        end = midnight + timedelta(minutes=self.until_min)
        if self.until_weekday is None:
            if end <= begin:
                end += timedelta(1)
        else:
            end += timedelta((self.until_weekday - day.weekday()) % 7)
            if end <= begin:
                end += timedelta(7)
        return instant_s(begin, self.zone), instant_s(end, self.zone)


def instant_s(local: datetime, zone: tzinfo) -> float:
    """Return the moment of the *local* time in *zone*, in seconds since 1970.

    A doubled time: its first occurrence; a skipped one: the first moment after the gap.
    """
    first, last = local.replace(tzinfo=zone, fold=0), local.replace(tzinfo=zone, fold=1)
    after = last.utcoffset()
    if after is None or after <= (first.utcoffset() or timedelta()):
        return first.timestamp()
    # PEP 495: in a gap the two have the offsets before and after it, so that the later offset gives
    # a moment before the gap, and the earlier one a moment after it.
    low, high = int(last.timestamp()) - 1, int(first.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == after:
            high = middle
        else:
            low = middle
    return float(high)
