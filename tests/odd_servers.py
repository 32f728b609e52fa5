# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real server on the loopback that says exactly what a test wants, however odd."""

from collections.abc import Callable
import socket
import ssl
import threading
from types import TracebackType

__all__ = ("OddServer", "ok")


def ok(body: bytes, *headers: str) -> bytes:
    """Return an ordinary answer."""
    lines = ("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


class OddServer:
    """Answers each connection with *answer*: bytes, or what it does with the socket.

    ``requests`` are the heads that came, in order. A hanging server keeps its connections.
    """

    def __init__(
        self, answer: bytes | Callable[[socket.socket], None], tls: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.requests: list[str] = []
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> "OddServer":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def hang(self, _: socket.socket) -> None:
        """An answer: none, until the end of the test."""
        self._ended.wait()

    def drip(self, connection: socket.socket) -> None:
        """An answer: one byte after the other, each in good time, without end."""
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not self._ended.wait(0.005):
            connection.sendall(b"y")

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        with connection:
            try:
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                head = b""
                while b"\r\n\r\n" not in head and (part := connection.recv(65536)):
                    head += part
                self.requests.append(head.decode())
                if isinstance(self.answer, bytes):
                    connection.sendall(self.answer)
                else:
                    self.answer(connection)
            except OSError:  # the other end had enough
                pass
            finally:
                connection.close()
