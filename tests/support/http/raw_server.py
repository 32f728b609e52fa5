# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An HTTP server on the loopback that sends the raw bytes a test gives it, valid HTTP or not."""

from collections.abc import Callable
import socket
import ssl
import threading
from types import TracebackType
from typing import Self

from tests.support.waiting import DEADLINE_S

__all__ = ("CHUNKED", "RawHttpServer", "ok", "response")


# The head of an answer that consists of chunks.
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def response(status: int, body: bytes, *headers: str) -> bytes:
    """Return a response with *body* and its length."""
    reason = "OK" if status == 200 else "No"
    lines = (f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def ok(body: bytes, *headers: str) -> bytes:
    """Return a response with status 200 and *body*."""
    return response(200, body, *headers)


class RawHttpServer:
    """Answers each connection with *answer*: bytes to send, or a function of the socket.

    ``requests`` are the received request heads, in order. ``answer`` may be replaced at any time.
    """

    def __init__(
        self,
        answer: bytes | Callable[[socket.socket], None],
        tls: ssl.SSLContext | None = None,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.answer = answer
        self.requests: list[str] = []
        self._tls = tls
        self._listener = socket.create_server(address)
        self.port: int = self._listener.getsockname()[1]
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
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
        """The URL of the server, without a path."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def hang(self, _: socket.socket) -> None:
        """As an answer: send nothing and keep the connection until the end of the test."""
        self._ended.wait()

    def drip(self, connection: socket.socket) -> None:
        """As an answer: send one byte every 5 ms without end; no single read times out."""
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
        connection.settimeout(DEADLINE_S)
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
            except OSError:  # the client closed the connection
                pass
            finally:
                connection.close()
