# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between an agent and its API server, which tests can interrupt or stall."""

from collections.abc import Callable
import contextlib
import socket
import threading

from tests.kernel.netns import entered

__all__ = ("Cable",)

_CHUNK = 65536


class Cable:
    """Forwards connections from its own port to *port* of the loopback.

    ``connections`` is the number of accepted connections, successful or not.

    :param listener: accepts the connections; by default at a free port of the loopback.
    :param namespace: the network namespace of *port*, as a path; empty: that of this process.
    """

    def __init__(
        self, port: int, *, listener: socket.socket | None = None, namespace: str = ""
    ) -> None:
        self._to = port
        self._there: Callable[[], contextlib.AbstractContextManager[None]] = (
            (lambda: entered(namespace)) if namespace else contextlib.nullcontext
        )
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._flows = threading.Event()
        self._flows.set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> "Cable":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.release()
        self.cut()
        for thread in self._threads:
            thread.join()

    @property
    def url(self) -> str:
        """The URL of the API server through this proxy."""
        return f"https://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close all current connections; new ones are accepted."""
        with self._lock:
            ends = list(self._open)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Stop forwarding data, without closing connections."""
        self._flows.clear()

    def release(self) -> None:
        """Forward data again, with what was held."""
        self._flows.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.connections += 1
            try:
                with self._there():
                    far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the server is down: the agent sees a closed connection
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(target=self._carry, args=(source, sink))
                thread.start()
                self._threads.append(thread)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                self._flows.wait()
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()
