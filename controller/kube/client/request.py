# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A request in progress, which another thread or a deadline can abort."""

import select
import socket
import threading

__all__ = ("Request",)

# The amount that a connection accepts before the kernel enlarges its receive buffer.
_ENOUGH_BYTES = 64 << 10


class Request:
    """The connection of one request and its deadline.

    ``abort_reason`` is empty unless the request was aborted. ``was_connected``: there was a
    connection, so the request may have been sent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._timer: threading.Timer | None = None
        self.was_connected = False
        self.abort_reason = ""

    def start_deadline(self, limit_s: float) -> None:
        """Abort after *limit_s* seconds unless ``cancel_deadline`` or ``close`` is called first."""
        reason = f"no answer within {limit_s:g} s"
        self._timer = threading.Timer(limit_s, self.abort, (reason,))
        self._timer.daemon = True
        self._timer.start()

    def cancel_deadline(self) -> None:
        """Cancel the deadline."""
        if self._timer is not None:
            self._timer.cancel()

    def set_connection(self, connection: object) -> None:
        """Set the connection of the request; called by the thread of the request.

        :raises ConnectionAbortedError: the request was aborted before it was connected.
        """
        with self._lock:
            if isinstance(connection, socket.socket):
                self._socket = connection
            if self.abort_reason:
                raise ConnectionAbortedError(self.abort_reason)
            self.was_connected = True

    def gather(self, wait_s: float) -> None:
        """Wait for 64 KiB of data or the end of the connection, at most *wait_s* seconds.

        Called by the thread of the request.
        """
        connection = self._socket
        if connection is None or connection.fileno() < 0:  # already closed
            return
        readable = select.poll()
        readable.register(connection, select.POLLIN)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _ENOUGH_BYTES)
        readable.poll(1000 * wait_s)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def abort(self, reason: str) -> None:
        """Make the blocking call of the request's thread fail now; called by other threads."""
        with self._lock:
            self.abort_reason = self.abort_reason or reason
            if self._socket is not None:
                try:
                    # Not SSLSocket.shutdown(): it removes the TLS layer first, and the other
                    # thread might then send its request in clear text.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
                except OSError:  # already disconnected
                    return

    def close(self) -> None:
        """Detach the connection, which can no longer be aborted, and cancel the deadline."""
        self.cancel_deadline()
        with self._lock:
            self._socket = None
