# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Log lines that owners of pods can cause, as many as they like; few of them are written."""

from collections.abc import Callable
import logging
import time

__all__ = ("Sparing",)

# A node full of pods with mistaken labels is told at once and whole.
_BURST = 250.0
_PER_SECOND = 1 / 10


class Sparing:
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
        self.write(logging.WARNING, text)

    def write(self, level: int, text: str) -> None:
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
