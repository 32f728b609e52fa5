# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How much of the agent its HTTP clients may use up: anybody in the cluster may be one.

Threads are memory, and a page that is made over and over again is CPU time that the agent counts
as its own: past its budget it would do without what tells who is to blame.
"""

from collections.abc import Callable
import contextlib
import socket
import threading
import time
from typing import TypeVar

__all__ = ("Connections", "Pacer")

_Made = TypeVar("_Made")

_MOST_CONNECTIONS = 64
_MOST_WAITING = 4
# Making pages takes a tenth of one CPU, however many are asked for; with a thousand workloads more,
# because nobody waits longer than this for somebody else's page.
_REST = 9
_LONGEST_REST_S = 1.0


class Connections:
    """The connections that are open, at most 64: for a new one the oldest is hung up.

    An honest client is served within milliseconds, so the oldest are those that stall.
    """

    def __init__(self, most: int = _MOST_CONNECTIONS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # in order of time

    def add(self, connection: socket.socket) -> None:
        """Take a new connection."""
        with self._lock:
            self._open[connection] = None
            if len(self._open) > self._most:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):  # it is gone already
                    oldest.shutdown(socket.SHUT_RDWR)

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that is about to be closed."""
        with self._lock:
            self._open.pop(connection, None)


class Pacer:
    """Lets one thread at a time make a page, with a rest after it of nine times its CPU time.

    The rest is at most a second.

    :param clock: seconds of CLOCK_MONOTONIC; *cpu_clock* those of the calling thread on a CPU.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._sleep = sleep
        self._places = threading.BoundedSemaphore(_MOST_WAITING)
        self._turn = threading.Lock()
        self._rested_s = 0.0

    def make(self, page: Callable[[], _Made]) -> _Made | None:
        """Return what *page* does, after its turn has come; ``None``: too many are waiting."""
        if not self._places.acquire(blocking=False):
            return None
        try:
            with self._turn:
                self._sleep(max(0.0, self._rested_s - self._clock()))
                began_s = self._cpu_clock()
                try:
                    return page()
                finally:
                    took_s = self._cpu_clock() - began_s
                    self._rested_s = self._clock() + min(_REST * took_s, _LONGEST_REST_S)
        finally:
            self._places.release()
