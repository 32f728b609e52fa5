# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How long to wait before asking the API server again.

Log lines that owners of pods can cause, as many as they like; few of them are written.
"""

from collections.abc import Callable
import logging
from random import Random
import time

__all__ = (
    "Backoff",
    "RateLimitedLogger",
)


class Backoff:
    """Exponential with full jitter: the nodes of a cluster must not come back all at once.

    A wait lies between nothing and a ceiling that starts at *first_s* and doubles up to
    *longest_s*; it starts anew after twice the longest without trouble.

    :param clock: returns the time in seconds, monotonic.
    """

    def __init__(
        self,
        random: Random,
        *,
        first_s: float = 1.0,
        longest_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._random = random
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._times = 0
        self._until_s = clock()

    def next_s(self, retry_after_s: float | None = None) -> float:
        """Return how long to wait now, at least as long as the server asked for."""
        now_s = self._clock()
        if now_s - self._until_s > 2 * self._longest_s:
            self._times = 0
        ceiling_s = min(self._longest_s, self._first_s * 2.0 ** min(self._times, 30))
        self._times += 1
        wait_s = (retry_after_s or 0.0) + self._random.uniform(0, ceiling_s)
        self._until_s = now_s + wait_s
        return wait_s

    def reset(self) -> None:
        """Start anew: it went well."""
        self._times = 0


# A node full of pods with mistaken labels is told at once and whole.
_BURST = 250.0
_PER_SECOND = 1 / 10


class RateLimitedLogger:
    """Writes lines to *log*, and beyond a rate only how many were left out; for one thread.

    :param clock: seconds of CLOCK_MONOTONIC.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._tokens = _BURST
        self._filled_s = clock()
        self._left_out = 0

    def warning(self, text: str) -> None:
        """Write *text*, one line, or leave it out."""
        self.log(logging.WARNING, text)

    def log(self, level: int, text: str) -> None:
        """Write *text*, one line of that level of ``logging``, or leave it out."""
        now_s = self._clock()
        self._tokens = min(_BURST, self._tokens + (now_s - self._filled_s) * _PER_SECOND)
        self._filled_s = now_s
        if self._tokens < 1:
            self._left_out += 1
            return
        self._tokens -= 1
        if self._left_out:
            self._log.warning(
                "%d lines about pods were left out: there are too many", self._left_out
            )
            self._left_out = 0
        self._log.log(level, "%s", text)
