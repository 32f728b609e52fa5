# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rates towards the API server and the log: back-off, a token bucket, a rate-limited logger."""

from collections.abc import Callable
import logging
from random import Random
import time

__all__ = (
    "Backoff",
    "RateLimitedLogger",
    "TokenBucket",
)

_LOG_BURST = 250.0
_LOG_PER_SECOND = 1 / 10


class Backoff:
    """Exponential back-off with full jitter, so that the nodes of a cluster do not retry together.

    A wait is uniformly distributed between 0 and a ceiling, which starts at *first_s* and doubles
    up to *longest_s*. The ceiling starts at *first_s* again after twice *longest_s* without a call.

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
        self._failures = 0
        self._until_s = clock()

    def next_s(self, retry_after_s: float | None = None) -> float:
        """Return the next wait in seconds: the jitter is added to *retry_after_s*."""
        now_s = self._clock()
        if now_s - self._until_s > 2 * self._longest_s:
            self._failures = 0
        ceiling_s = min(self._longest_s, self._first_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        wait_s = (retry_after_s or 0.0) + self._random.uniform(0, ceiling_s)
        self._until_s = now_s + wait_s
        return wait_s

    def reset(self) -> None:
        """Start at the first ceiling again, after a success."""
        self._failures = 0


class TokenBucket:
    """A token bucket: full at *now_s*, at most *burst* tokens, refilled at *per_second*.

    Times are seconds of one monotonic clock.
    """

    def __init__(self, burst: float, per_second: float, now_s: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._tokens = burst
        self._filled_s = now_s

    def take(self, now_s: float, reserve: float = 0.0) -> bool:
        """Take one token; return False, and take none, if fewer than 1 + *reserve* are left."""
        if not self.allows(now_s, reserve):
            return False
        self.spend(1)
        return True

    def allows(self, now_s: float, reserve: float = 0.0) -> bool:
        """Return whether 1 + *reserve* tokens are there."""
        refilled = (now_s - self._filled_s) * self._per_second
        self._tokens = min(self._burst, self._tokens + refilled)
        self._filled_s = now_s
        return self._tokens >= 1 + reserve

    def spend(self, tokens: float) -> None:
        """Take *tokens*, also more than are there."""
        self._tokens -= tokens


class RateLimitedLogger:
    """Logger for messages that owners of pods or cgroups can trigger; for one thread.

    A token bucket bounds the messages: 250 at once, so that the messages about a node full of pods
    with wrong labels all appear, and one per 10 s afterwards. Suppressed messages are counted; the
    count precedes the next message that is written.

    :param clock: seconds of CLOCK_MONOTONIC.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._bucket = TokenBucket(_LOG_BURST, _LOG_PER_SECOND, clock())
        self._suppressed = 0

    def warning(self, text: str) -> None:
        """Write or suppress *text*, one line, at level WARNING."""
        self.log(logging.WARNING, text)

    def log(self, level: int, text: str) -> None:
        """Write or suppress *text*, one line, at *level* of ``logging``."""
        if not self._bucket.take(self._clock()):
            self._suppressed += 1
            return
        if self._suppressed:
            self._log.warning(
                "%d lines about workloads were suppressed: there are too many", self._suppressed
            )
            self._suppressed = 0
        self._log.log(level, "%s", text)
