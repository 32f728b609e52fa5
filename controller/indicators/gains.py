# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A sliding window over a few counters that are read together from one source."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

__all__ = ("Gain", "GainWindow")

# Too few events: look back up to this many windows before giving up.
_STRETCH = 4


class Gain(NamedTuple):
    """What each counter gained in *span_ns*."""

    span_ns: int
    counts: tuple[int, ...]


class GainWindow:
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

    def read(self, window_ns: int, least: int = 0) -> Gain | None:
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
        return Gain(now_ns - then_ns, gained)
