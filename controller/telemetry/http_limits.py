# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Access control and resource limits of the HTTP server: token, connections, CPU time.

Every program in the cluster may be a client. The bearer token is read from its file for each
request, because a Secret that is mounted into a pod is renewed in place; while the file has no
token, all requests for protected pages are refused.

Connections are limited because each has a thread and its memory, and pages because their CPU time
counts as the agent's own: above its CPU budget the agent would shed details such as blame.
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

_MAX_BYTES = 4096
# Syntax of RFC 6750, section 2.1; at least 16 characters, because shorter tokens can be guessed.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")
_PREFIX = re.compile(r"bearer +", re.IGNORECASE)


class TokenError(Exception):
    """The file has no token; the message does not quote its contents."""


class TokenFile:
    """Compares credentials of clients with the token in the file *path*; thread-safe.

    :raises TokenError: the file has no token now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problem = ""
        self._read()

    def admits(self, authorization: str) -> bool:
        """Return whether *authorization*, the value of that header, has the token.

        :raises TokenError: the file has no token now.
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
        # Headers are Latin-1; other characters cannot occur, and would not be part of a token.
        return hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)

    def _read(self) -> bytes:
        try:
            # O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise TokenError(f"http_token_file: {self._path}: not a regular file")
                text = file.read(_MAX_BYTES + 1).strip()
        except OSError as error:
            raise TokenError(f"http_token_file: {self._path}: {error.strerror}") from None
        if len(text) > _MAX_BYTES or not _TOKEN.fullmatch(text):
            raise TokenError(
                f"http_token_file: {self._path}: must hold one token of at least 16 characters: "
                "letters, digits and ._~+/-"
            )
        return text


_Page = TypeVar("_Page")

_MAX_CONNECTIONS = 64
_MAX_WAITING = 4
# Pause after a page, as a multiple of its CPU time: pages take at most a tenth of one CPU. With a
# thousand workloads they take more, because the pause is limited.
_PAUSE_RATIO = 9
_MAX_PAUSE_S = 1.0


class Connections:
    """The open connections, at most *limit*: beyond it the oldest one is closed.

    Normal clients are served within milliseconds, so the oldest connections are stalled ones.
    """

    def __init__(self, limit: int = _MAX_CONNECTIONS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # ordered by time

    def add(self, connection: socket.socket) -> None:
        """Add a new connection, and close the oldest one if there are too many."""
        with self._lock:
            self._open[connection] = None
            if len(self._open) > self._limit:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):  # already disconnected
                    oldest.shutdown(socket.SHUT_RDWR)

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection that is about to be closed."""
        with self._lock:
            self._open.pop(connection, None)


class Pacer:
    """Makes pages one at a time, each followed by a pause of nine times its CPU time.

    The pause is at most one second. At most four requests are served or wait at a time.

    :param clock: seconds of CLOCK_MONOTONIC.
    :param cpu_clock: seconds of CPU time of the calling thread.
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
        self._slots = threading.BoundedSemaphore(_MAX_WAITING)
        self._lock = threading.Lock()
        self._pause_until_s = 0.0

    def make(self, page: Callable[[], _Page]) -> _Page | None:
        """Wait until a page may be made and return the result of *page*.

        ``None``: too many requests are waiting.
        """
        if not self._slots.acquire(blocking=False):
            return None
        try:
            with self._lock:
                self._sleep(max(0.0, self._pause_until_s - self._clock()))
                began_s = self._cpu_clock()
                try:
                    return page()
                finally:
                    pause_s = min(_PAUSE_RATIO * (self._cpu_clock() - began_s), _MAX_PAUSE_S)
                    self._pause_until_s = self._clock() + pause_s
        finally:
            self._slots.release()
