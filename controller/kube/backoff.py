# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How long to wait before asking the API server again."""

from collections.abc import Callable
from random import Random
import time

__all__ = ("Backoff",)


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
