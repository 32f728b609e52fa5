# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sliding windows over cumulative counters.

``WaitWindow`` holds the samples of one latency-sensitive workload, with its histogram of run-queue
waits. ``DeltaWindow`` holds a few counters that are read together from one source. Both stretch a
window that contains too few events.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar, cast

from controller.core.indicators.counters import increase
from controller.core.indicators.measurement import BUCKETS, WindowReading, difference
from controller.core.model import WorkloadSample

__all__ = ("STRETCH", "Delta", "DeltaWindow", "WaitWindow")

Sample = TypeVar("Sample")

# A window with too few events for a value is stretched up to this many windows.
STRETCH = 4


class _Window(Generic[Sample]):
    """Samples with their times, one per tick, as far back as the longest window needs."""

    __slots__ = ("_keep_ns", "_samples")

    def __init__(self, window_ns: int = 0) -> None:
        self._samples: deque[tuple[int, Sample]] = deque()
        self.keep_for(window_ns)

    def keep_for(self, window_ns: int) -> None:
        """Keep enough samples for windows of *window_ns*, from the next push on."""
        self._keep_ns = STRETCH * window_ns

    def clear(self) -> None:
        """Drop all samples, as is needed after a gap."""
        self._samples.clear()

    def _append(self, time_ns: int, sample: Sample) -> None:
        samples = self._samples
        samples.append((time_ns, sample))
        while len(samples) > 2 and samples[1][0] <= time_ns - self._keep_ns:
            samples.popleft()

    def _begin(self, window_ns: int, is_enough: Callable[[Sample], bool]) -> tuple[int, Sample]:
        """Return the sample with which the last *window_ns* begin; there are two at least.

        The window is stretched until *is_enough* of its first sample, but to four times *window_ns*
        at most, also where more is kept for a longer window: the gains of the loop assume this one.
        """
        now_ns, longest_ns = self._samples[-1][0], STRETCH * window_ns
        first = self._samples[0]
        if now_ns - first[0] <= longest_ns and not is_enough(first[1]):
            return first
        # From the newest to the oldest: the first that is old enough and gives enough events.
        for first in islice(reversed(self._samples), 1, None):
            age_ns = now_ns - first[0]
            if age_ns >= window_ns and (is_enough(first[1]) or age_ns >= longest_ns):
                break
        return first


class WaitWindow(_Window[WorkloadSample]):
    """Samples of one workload.

    A counter that shrinks was re-based (the probe was reloaded, or the cgroup was created again).
    The window then drops its older samples, so that no difference is negative.
    """

    __slots__ = ("_readings",)

    def __init__(self, window_ns: int = 0) -> None:
        super().__init__(window_ns)
        # Those of the last tick, by their beginning: several indicators need the same.
        self._readings: dict[int, WindowReading | None] = {}

    def push(self, time_ns: int, sample: WorkloadSample) -> None:
        """Add the sample of one tick; *time_ns* must grow from call to call."""
        self._readings.clear()
        if self._samples and _shrank(self._samples[-1][1], sample):
            self._samples.clear()
        self._append(time_ns, sample)

    @property
    def is_quiescent(self) -> bool:
        """Whether no counter changed within the samples, so every difference is zero."""
        samples = self._samples
        if len(samples) < 2:
            return False
        oldest, newest = samples[0][1], samples[-1][1]
        return oldest is newest or oldest == newest

    def catch_up(self, times_ns: Sequence[int]) -> None:
        """Repeat the newest sample at those of *times_ns* (ascending) that are later than it.

        This makes up for the pushes that are left out while the workload is quiescent.
        """
        samples = self._samples
        if not samples or times_ns[-1] <= samples[-1][0]:
            return
        last_ns, newest = samples[-1]
        self._readings.clear()
        samples.extend((time_ns, newest) for time_ns in times_ns if time_ns > last_ns)

    def clear(self) -> None:
        """Drop all samples, as is needed after a gap."""
        super().clear()
        self._readings.clear()

    def read(self, window_ns: int, min_samples: int) -> WindowReading | None:
        """Return the differences over the last *window_ns*, stretched until *min_samples* waits.

        ``None`` while there are no two samples with a histogram. The reading may hold fewer than
        *min_samples* waits.
        """
        if len(self._samples) < 2:
            return None
        now_ns, newest = self._samples[-1]
        if newest.runq_histogram is None:
            return None
        most = (newest.waits or 0) - min_samples
        then_ns, older = self._begin(window_ns, lambda first: (first.waits or 0) <= most)
        if then_ns not in self._readings:
            self._readings[then_ns] = _between(now_ns - then_ns, newest, older)
        return self._readings[then_ns]

    def last_ticks(self, count: int, shows: Callable[[WindowReading], bool]) -> list[WindowReading]:
        """Return the differences of each of the last *count* ticks; fewer where fewer are known.

        Ticks may come soon after one another (agent/schedule.py), and few waits end in a short one.
        One that does not show what is asked for is taken together with the ones before, until it
        does or 100 ms are together.
        """
        readings: list[WindowReading] = []
        samples = reversed(self._samples)
        time_ns, sample = next(samples, (0, None))
        for then_ns, older in samples:
            if len(readings) == count or sample is None:
                break
            span_ns = time_ns - then_ns
            reading = _between(span_ns, sample, older)
            if reading is not None:
                if span_ns < 100_000_000 and not shows(reading):
                    continue
                readings.append(reading)
            time_ns, sample = then_ns, older
        return readings


def _between(span_ns: int, newest: WorkloadSample, older: WorkloadSample) -> WindowReading | None:
    if newest.runq_histogram is None or older.runq_histogram is None:
        return None
    waits: list[int] | None = [0] * BUCKETS
    if newest.waits != older.waits:
        waits = difference(newest.runq_histogram, older.runq_histogram)
    if waits is None or span_ns <= 0:
        return None
    return WindowReading(
        span_ns=span_ns,
        waits=waits,
        samples=sum(waits),
        oncpu_ratio=increase(older.oncpu_ns, newest.oncpu_ns) / span_ns,
        inflicted_ratio=increase(older.wait_inflicted_ns, newest.wait_inflicted_ns) / span_ns,
        throttled_ns=None
        if newest.throttled_ns is None or older.throttled_ns is None
        else increase(older.throttled_ns, newest.throttled_ns),
        host_ratio=increase(older.wait_host_ns, newest.wait_host_ns) / span_ns,
    )


def _shrank(older: WorkloadSample, newer: WorkloadSample) -> bool:
    pairs = (
        (older.oncpu_ns, newer.oncpu_ns),
        (older.waits, newer.waits),
        (older.wait_inflicted_ns, newer.wait_inflicted_ns),
    )
    return any(old is not None and new is not None and new < old for old, new in pairs)


class Delta(NamedTuple):
    """Increase of each counter within ``span_ns``."""

    span_ns: int
    counts: tuple[int, ...]


class DeltaWindow(_Window[tuple[int, ...]]):
    """Readings of a few counters.

    A counter that shrank was re-based (the probe was reloaded, or the id of the cgroup was reused),
    and a counter that was missing may have been. The window then drops its older readings, so that
    no difference is negative or spans two objects. ``alive``: the last reading had all counters.
    """

    __slots__ = ("alive",)

    def __init__(self, window_ns: int = 0) -> None:
        super().__init__(window_ns)
        self.alive = False

    def push(self, time_ns: int, counts: Sequence[int | None]) -> None:
        """Add what was read at *time_ns*; ``None`` is a missing counter.

        A *time_ns* not after that of the last reading means that nothing was read since: only
        ``alive`` is updated.
        """
        samples = self._samples
        self.alive = None not in counts
        if not self.alive:
            samples.clear()
            return
        known = cast(tuple[int, ...], tuple(counts))
        if samples:
            last_ns, last = samples[-1]
            if time_ns <= last_ns:
                return
            # Mostly the workload sleeps, and the counts are the same.
            if known != last and any(now < before for now, before in zip(known, last, strict=True)):
                samples.clear()
        self._append(time_ns, known)

    def repeats(self, time_ns: int, counts: Sequence[int | None], within_ns: int) -> bool:
        """Whether the first of *counts* did not change since the last reading.

        False if that reading is *within_ns* old or older, or if a counter is missing.
        """
        if not self._samples or None in counts:
            return False
        last_ns, last = self._samples[-1]
        return counts[0] == last[0] and time_ns - last_ns < within_ns

    def read(self, window_ns: int, least: int = 0) -> Delta | None:
        """Return the increases over *window_ns*, stretched until the first counter grew by *least*.

        ``None`` while there are no two readings. The first counter may have grown by less than
        *least*.
        """
        if len(self._samples) < 2:
            return None
        now_ns, newest = self._samples[-1]
        most = newest[0] - least
        then_ns, older = self._begin(window_ns, lambda first: first[0] <= most)
        counts = tuple(now - before for now, before in zip(newest, older, strict=True))
        return Delta(now_ns - then_ns, counts)
