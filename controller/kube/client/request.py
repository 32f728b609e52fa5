# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A request under way, which another thread or a deadline may cut off."""

import select
import socket
import threading

__all__ = ("Request",)

# As much as a connection takes before the kernel has seen that it needs more room.
_MUCH = 64 << 10


class Request:
    """The connection of one request; ``why_cut`` says why it was cut, empty: it was not.

    ``stood``: there was a connection, over which something may have been asked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._timer: threading.Timer | None = None
        self.stood = False
        self.why_cut = ""

    def within(self, limit_s: float) -> None:
        """Cut it off unless ``in_time`` or ``ended`` is called within *limit_s* seconds."""
        why = f"no answer within {limit_s:g} s"
        self._timer = threading.Timer(limit_s, self.cut, (why,))
        self._timer.daemon = True
        self._timer.start()

    def in_time(self) -> None:
        """Lift the limit."""
        if self._timer is not None:
            self._timer.cancel()

    def connected(self, connection: object) -> None:
        """Take the connection; called by the thread of the request.

        :raises ConnectionAbortedError: it was cut off before it stood.
        """
        with self._lock:
            if isinstance(connection, socket.socket):
                self._socket = connection
            if self.why_cut:
                raise ConnectionAbortedError(self.why_cut)
            self.stood = True

    def gather(self, wait_s: float) -> None:
        """Wait until much has come, or the end, or *wait_s* seconds.

        Called by the thread of the request.
        """
        connection = self._socket
        if connection is None or connection.fileno() < 0:  # it has ended
            return
        readable = select.poll()
        readable.register(connection, select.POLLIN)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _MUCH)
        readable.poll(1000 * wait_s)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def cut(self, why: str) -> None:
        """Make whatever the thread of the request waits for fail now; for other threads."""
        with self._lock:
            self.why_cut = self.why_cut or why
            if self._socket is not None:
                try:
                    # Not the method of an SSLSocket: that turns TLS off first, and the other
                    # thread might send its request in clear text.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
                except OSError:  # it is gone already
                    return

    def ended(self) -> None:
        """Nothing of it can be cut any more."""
        self.in_time()
        with self._lock:
            self._socket = None
