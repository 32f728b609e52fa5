# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Access control and resource limits of the HTTP server: token, connections, CPU time.

Every program in the cluster may be a client. The bearer token is read from its file for each
request, because a Secret that is mounted into a pod is renewed in place; while the file has no
token, all requests for protected pages are refused.

Connections are limited because each has a thread and its memory, and the time of each because a
client may send a byte now and then for ever. Pages, and all requests together, are limited in CPU
time, which is the node's; it does not count towards the budget above which the agent sheds details
such as blame, because then any client could blind it.

Requests of other hosts are refused above a rate per address, so that one of them cannot use up what
all may use. Requests of this host are not: kubelet's probes share its addresses with every program
in the host's network namespace.
"""

from base64 import b64decode
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
from typing import Generic, NamedTuple, TypeVar

__all__ = (
    "Connections",
    "CpuTime",
    "Pacer",
    "Peers",
    "TokenError",
    "TokenFile",
)

_log = logging.getLogger(__name__)

_MAX_BYTES = 4096
# Syntax of RFC 6750, section 2.1; at least 16 characters, because shorter tokens can be guessed.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")
_PREFIX = re.compile(r"bearer +", re.IGNORECASE)
_BASIC = re.compile(r"basic +", re.IGNORECASE)


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
        given = authorization[prefix.end() :] if prefix else _password(authorization)
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
_MAX_OF_PEER = 16
_DEADLINE_S = 10.0
_MAX_RATE = 20
_BURST = 40
_MAX_PEERS = 1024
_MAX_WAITING = 4
# Pause after a page, as a multiple of its CPU time: pages take at most a tenth of one CPU. With a
# thousand workloads they take more, because the pause is limited.
_PAUSE_RATIO = 9
_MAX_PAUSE_S = 1.0
# The age up to which a page is given again, and while no other one can be made.
_FRESH_S = 1.0
_STALE_S = 5.0


class Connections:
    """The open connections, at most 64 and 16 of a peer: beyond that the oldest is closed.

    Normal clients are served within milliseconds, so the oldest connections are stalled ones. Each
    has ten seconds from the first byte to the last, however busy it is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[socket.socket, tuple[str, float]] = {}  # peer, start; ordered by start

    def add(self, connection: socket.socket, peer: str) -> None:
        """Add a new connection, and close the oldest one if there are too many."""
        with self._lock:
            self._open[connection] = peer, self._clock()
            of_peer = [each for each, (other, _) in self._open.items() if other == peer]
            if len(of_peer) > _MAX_OF_PEER:
                self._close(of_peer[0])
            elif len(self._open) > _MAX_CONNECTIONS:
                self._close(next(iter(self._open)))

    def close_late(self) -> None:
        """Close the connections whose ten seconds are over."""
        with self._lock:
            start_s = self._clock() - _DEADLINE_S
            for each in [one for one, (_, began_s) in self._open.items() if began_s < start_s]:
                self._close(each)

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection that is about to be closed."""
        with self._lock:
            self._open.pop(connection, None)

    def _close(self, connection: socket.socket) -> None:
        del self._open[connection]
        with contextlib.suppress(OSError):  # already disconnected
            connection.shutdown(socket.SHUT_RDWR)


def _password(authorization: str) -> str:
    """Return the password of HTTP Basic authentication (RFC 7617) with any user name, or empty."""
    prefix = _BASIC.match(authorization)
    try:
        pair = b64decode(authorization[prefix.end() :], validate=True) if prefix else b""
    except ValueError:
        return ""
    return pair.partition(b":")[2].decode("latin-1")


class Peers:
    """The rate of each peer's requests: 20 a second, and 40 at once after a pause."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the requests so far are paid for at the permitted rate (GCRA, ITU-T I.371, annex A).
        self._paid_s: dict[str, float] = {}

    def admit(self, peer: str) -> bool:
        """Return whether *peer* may send a request now."""
        now_s = self._clock()
        if len(self._paid_s) >= _MAX_PEERS:
            self._paid_s = {each: at for each, at in self._paid_s.items() if at > now_s}
        if len(self._paid_s) >= _MAX_PEERS:
            return True  # what all requests together may use is limited as well
        paid_s = max(now_s, self._paid_s.get(peer, 0.0)) + 1 / _MAX_RATE
        if paid_s > now_s + (_BURST + 0.5) / _MAX_RATE:  # 0.5: sums of floats are not exact
            return False
        self._paid_s[peer] = paid_s
        return True


class CpuTime:
    """CPU time that the threads of the server used, in seconds: ``total_s``; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unpaid_s = 0.0
        self.total_s = 0.0

    def spend(self, cpu_s: float, paid_s: float = 0.0) -> None:
        """Add *cpu_s*, of which *paid_s* were followed by a pause already."""
        with self._lock:
            self.total_s += cpu_s
            self._unpaid_s += cpu_s - paid_s

    def pause_s(self) -> float:
        """Return the pause for what was spent since the last call: nine times that, 1 s at most."""
        with self._lock:
            unpaid_s, self._unpaid_s = self._unpaid_s, 0.0
        return min(_PAUSE_RATIO * unpaid_s, _MAX_PAUSE_S)


class _Copy(NamedTuple, Generic[_Page]):
    page: _Page
    made_s: float


class Pacer(Generic[_Page]):
    """Makes pages one at a time, each followed by a pause of nine times its CPU time.

    The pause is at most one second. At most four requests are served or wait at a time.

    Requests may share a page, so that ten clients do not wait for each other's pauses: one that is
    at most a second old is given again, and one that is at most five seconds old while the next one
    cannot be made.

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
        self._copies: dict[str, _Copy[_Page]] = {}

    def make(self, page: Callable[[], _Page], shared: str = "") -> _Page | None:
        """Wait until a page may be made and return the result of *page*.

        ``None``: too many requests are waiting.

        :param shared: the name under which requests share the page; empty: they do not.
        """
        copy = self._copies.get(shared)
        if copy is not None and self._clock() - copy.made_s < self._allowed_age_s():
            return copy.page
        if not self._slots.acquire(blocking=False):
            return None
        try:
            with self._lock:
                self._sleep(max(0.0, self._pause_until_s - self._clock()))
                copy = self._copies.get(shared)
                if copy is not None and self._clock() - copy.made_s < _FRESH_S:
                    return copy.page  # made for another request in the meantime
                return self._make(page, shared)
        finally:
            self._slots.release()

    def _allowed_age_s(self) -> float:
        busy = self._lock.locked() or self._clock() < self._pause_until_s
        return _STALE_S if busy else _FRESH_S

    def _make(self, page: Callable[[], _Page], shared: str) -> _Page:
        began_s = self._cpu_clock()
        try:
            made = page()
        finally:
            pause_s = min(_PAUSE_RATIO * (self._cpu_clock() - began_s), _MAX_PAUSE_S)
            self._pause_until_s = self._clock() + pause_s
        if shared:
            self._copies[shared] = _Copy(made, self._clock())
        return made
