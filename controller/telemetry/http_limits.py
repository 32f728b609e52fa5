# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The bearer token that some pages want, from a file that may change while we run.

A Secret that is mounted into a pod is renewed in place, so a change counts from the next request
on. As long as the file has no token in it nobody gets in.

How much of the agent its HTTP clients may use up: anybody in the cluster may be one.

Threads are memory, and a page that is made over and over again is CPU time that the agent counts
as its own: past its budget it would do without what tells who is to blame.
"""

from collections.abc import Callable
import contextlib
import hmac
import logging
import os
from pathlib import Path
import re
import socket
import stat
import threading
import time
from typing import TypeVar

__all__ = (
    "Connections",
    "Pacer",
    "TokenError",
    "TokenFile",
)

_log = logging.getLogger(__name__)

_LONGEST = 4096
# RFC 6750, section 2.1. Shorter ones can be guessed.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")
_PREFIX = re.compile(r"bearer +", re.IGNORECASE)


class TokenError(Exception):
    """The file has no token; the message does not quote it."""


class TokenFile:
    """Compares what clients bring with what is in *path* at that moment; thread-safe.

    :raises TokenError: there is no token in it now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problem = ""
        self._read()

    def admits(self, authorization: str) -> bool:
        """Return whether the value of a request's Authorization header has the token.

        :raises TokenError: there is none in the file now.
        """
        try:
            token = self._read()
        except TokenError as error:
            if str(error) != self._problem:
                _log.error("%s", error)
            self._problem = str(error)
            raise
        self._problem = ""
        prefix = _PREFIX.match(authorization)
        given = authorization[prefix.end() :] if prefix else ""
        # What is not Latin-1 cannot have come in a header, and is no token anyway.
        return hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)

    def _read(self) -> bytes:
        try:
            # Without O_NONBLOCK opening a FIFO would wait for a writer.
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise TokenError(f"http_token_file: {self._path}: not a regular file")
                text = file.read(_LONGEST + 1).strip()
        except OSError as error:
            raise TokenError(f"http_token_file: {self._path}: {error.strerror}") from None
        if len(text) > _LONGEST or not _TOKEN.fullmatch(text):
            raise TokenError(
                f"http_token_file: {self._path}: must hold one token of at least 16 characters: "
                "letters, digits and ._~+/-"
            )
        return text


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
