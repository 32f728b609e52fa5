# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A sliding window over the counters of one latency-sensitive workload.

A sliding window over a few counters that are read together from one source.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from controller.core.indicators.histogram import BUCKETS, difference
from controller.core.model import WorkloadSample

__all__ = (
    "STRETCH",
    "Delta",
    "DeltaWindow",
    "WaitWindow",
    "WindowReading",
)

# Too few waits for a percentile: look back up to this many windows before giving up.
STRETCH = 4
_NO_WAITS = [0] * BUCKETS


class WindowReading(NamedTuple):
    """What a workload did during the last *span_ns* nanoseconds.

    ``oncpu_ratio`` and ``inflicted_ratio`` are CPUs (seconds per second), ``throttled_ns`` is
    ``None`` where nobody measures it.
    """

    span_ns: int
    waits: list[int]
    samples: int
    oncpu_ratio: float
    inflicted_ratio: float
    throttled_ns: int | None

    @property
    def wait_ratio(self) -> float:
        """Inflicted wait as a share of the time during which the workload wanted a CPU."""
        wanted = self.oncpu_ratio + self.inflicted_ratio
        return self.inflicted_ratio / wanted if wanted > 0 else 0.0


class WaitWindow:
    """Keeps one sample per tick, as long as the longest window needs.

    Counters that shrink were re-based (the probe was reloaded, the cgroup recreated): the
    window starts anew and reads nothing negative.
    """

    __slots__ = ("_keep_ns", "_readings", "_samples")

    def __init__(self, window_ns: int) -> None:
        self._keep_ns = STRETCH * window_ns
        self._samples: deque[tuple[int, WorkloadSample]] = deque()
        self._readings: dict[int, WindowReading | None] = {}

    def keep_for(self, window_ns: int) -> None:
        """Keep enough for windows of *window_ns*; takes effect with the next push."""
        self._keep_ns = STRETCH * window_ns

    def push(self, time_ns: int, sample: WorkloadSample) -> None:
        """Add the sample of one tick; times must grow."""
        samples = self._samples
        self._readings.clear()
        if samples and _shrank(samples[-1][1], sample):
            samples.clear()
        samples.append((time_ns, sample))
        while len(samples) > 2 and samples[1][0] <= time_ns - self._keep_ns:
            samples.popleft()

    @property
    def is_quiescent(self) -> bool:
        """Whether nothing was counted in it: whatever is read of it is nothing."""
        samples = self._samples
        if len(samples) < 2:
            return False
        oldest, newest = samples[0][1], samples[-1][1]
        return oldest is newest or oldest == newest

    def catch_up(self, times_ns: Sequence[int]) -> None:
        """Push the newest sample for those of *times_ns*, growing, at which nothing was pushed.

        So a window that stands still need not be pushed to.
        """
        samples = self._samples
        if not samples or times_ns[-1] <= samples[-1][0]:
            return
        last_ns, newest = samples[-1]
        self._readings.clear()
        samples.extend((time_ns, newest) for time_ns in times_ns if time_ns > last_ns)

    def clear(self) -> None:
        """Forget everything, as after a gap."""
        self._samples.clear()
        self._readings.clear()

    def read(self, window_ns: int, min_samples: int) -> WindowReading | None:
        """Return the gain over the last *window_ns*, stretched until *min_samples* waits.

        ``None`` while there are no two samples with a histogram to compare. A reading may
        still hold fewer waits than asked for: the stretch ends at four windows.
        """
        if len(self._samples) < 2:
            return None
        now_ns, newest = self._samples[-1]
        if newest.runq_histogram is None:
            return None
        waits = newest.waits or 0
        oldest_ns, oldest = self._samples[0]
        if waits - (oldest.waits or 0) < min_samples:
            return self._since(oldest_ns, oldest)
        # Oldest last: the first one that is old enough and brings enough waits is taken.
        for then_ns, older in islice(reversed(self._samples), 1, None):
            age_ns = now_ns - then_ns
            if age_ns < window_ns:
                continue
            if waits - (older.waits or 0) >= min_samples or age_ns >= self._keep_ns:
                break
        return self._since(then_ns, older)

    def _since(self, then_ns: int, older: WorkloadSample) -> WindowReading | None:
        # Several indicators ask for the same span in one tick.
        if then_ns not in self._readings:
            now_ns, newest = self._samples[-1]
            self._readings[then_ns] = _between(now_ns - then_ns, newest, older)
        return self._readings[then_ns]


def _between(span_ns: int, newest: WorkloadSample, older: WorkloadSample) -> WindowReading | None:
    if newest.runq_histogram is None or older.runq_histogram is None:
        return None
    if newest.waits == older.waits:
        waits: list[int] | None = _NO_WAITS
    else:
        waits = difference(newest.runq_histogram, older.runq_histogram)
    if waits is None or span_ns <= 0:
        return None
    return WindowReading(
        span_ns=span_ns,
        waits=waits,
        samples=sum(waits),
        oncpu_ratio=(_delta(newest.oncpu_ns, older.oncpu_ns) or 0) / span_ns,
        inflicted_ratio=(_delta(newest.wait_inflicted_ns, older.wait_inflicted_ns) or 0) / span_ns,
        throttled_ns=_delta(newest.throttled_ns, older.throttled_ns),
    )


def _delta(newer: int | None, older: int | None) -> int | None:
    if newer is None or older is None:
        return None
    return max(0, newer - older)


def _shrank(older: WorkloadSample, newer: WorkloadSample) -> bool:
    for before, now in (
        (older.oncpu_ns, newer.oncpu_ns),
        (older.waits, newer.waits),
        (older.wait_inflicted_ns, newer.wait_inflicted_ns),
    ):
        if before is not None and now is not None and now < before:
            return True
    return False


# Too few events: look back up to this many windows before giving up.
_STRETCH = 4


class Delta(NamedTuple):
    """What each counter gained in *span_ns*."""

    span_ns: int
    counts: tuple[int, ...]


class DeltaWindow:
    """Keeps what was read, as long as the longest window needs.

    A counter that shrank was re-based (the probe was loaded anew, the cgroup's id belongs to
    another one now), and one that was missing may have been: the window starts anew, so no gain
    is negative or another's. ``alive``: the last look found all counters.
    """

    __slots__ = ("_keep_ns", "_samples", "alive")

    def __init__(self) -> None:
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque()
        self._keep_ns = 0
        self.alive = False

    def keep_for(self, window_ns: int) -> None:
        """Keep enough for windows of *window_ns*; takes effect with the next push."""
        self._keep_ns = _STRETCH * window_ns

    def push(self, time_ns: int, counts: Sequence[int | None]) -> None:
        """Take what was read at *time_ns*; the time of the last look: nothing was read since."""
        samples = self._samples
        known = tuple(count for count in counts if count is not None)
        self.alive = len(known) == len(counts)
        if not self.alive:
            samples.clear()
            return
        if samples:
            last_ns, last = samples[-1]
            if time_ns <= last_ns:
                return
            if any(now < before for now, before in zip(known, last, strict=True)):
                samples.clear()
        samples.append((time_ns, known))
        while len(samples) > 2 and samples[1][0] <= time_ns - self._keep_ns:
            samples.popleft()

    def clear(self) -> None:
        """Forget what was read, as after a gap."""
        self._samples.clear()

    def read(self, window_ns: int, least: int = 0) -> Delta | None:
        """Return the gain over *window_ns*, stretched until the first counter gained *least*.

        ``None`` while there is nothing to compare. It may still have gained less than asked for:
        the stretch ends at four windows.
        """
        if len(self._samples) < 2:
            return None
        now_ns, newest = self._samples[-1]
        then_ns, older = self._samples[0]
        for then_ns, older in islice(reversed(self._samples), 1, None):
            if now_ns - then_ns >= window_ns and newest[0] - older[0] >= least:
                break
        gained = tuple(now - before for now, before in zip(newest, older, strict=True))
        return Delta(now_ns - then_ns, gained)
