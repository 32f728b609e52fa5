# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Connections to a source, for one request or for many.

A protocol of asyncio and not streams: an answer takes one switch of tasks, and all connections
read into one buffer. Streams take memory for 256 KiB from the kernel with each read.
"""

import asyncio
import ssl
import threading
from typing import cast

from controller.probes.service_level.answer import Incoming, read_answer

__all__ = ("Client",)

_READ_BYTES = 64 << 10


class _Buffer(threading.local):
    """The buffer of the connections of a thread: what is read is taken out at once."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


_buffer = _Buffer()


class Client:
    """Requests to one server, one after the other, over one connection until ``close``."""

    def __init__(self) -> None:
        self._link: _Link | None = None
        self._tls: ssl.SSLContext | None = None

    async def get(
        self, host: str, port: int, tls: ssl.SSLContext | None, request: bytes, limit: int
    ) -> bytes:
        """Send *request* and return the body of the answer, at most *limit* bytes.

        A server may close a connection that waits, just when the request comes. Then the request is
        sent once more, on a new connection.

        :raises SourceError: see ``read_answer``.
        :raises OSError: the connection fails.
        """
        kept, self._link = self._link, None
        if kept is not None and kept.is_open and tls is self._tls:
            try:
                return await self._ask(kept, request, limit)
            except ConnectionError:
                if kept.has_answered:
                    raise
        elif kept is not None:
            kept.close()
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(_Link, host, port, ssl=tls)
        self._tls = tls
        return await self._ask(link, request, limit)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _ask(self, link: "_Link", request: bytes, limit: int) -> bytes:
        try:
            body, stays = await link.ask(request, limit)
        except BaseException:  # such as the cancellation by a time-out
            link.close()
            raise
        if stays:
            self._link = link
        else:
            link.close()
        return body


class _Link(asyncio.BufferedProtocol):
    """One connection. ``has_answered``: bytes came since the last request."""

    def __init__(self) -> None:
        self.has_answered = False
        self._transport: asyncio.Transport | None = None
        self._incoming = Incoming()
        self._error: Exception | None = None
        self._is_asked = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: bytes, limit: int) -> tuple[bytes, bool]:
        """Return the body of the answer to *request*, and whether the connection stays.

        :raises SourceError: see ``read_answer``.
        :raises OSError: the connection fails.
        """
        self.has_answered, self._is_asked = False, True
        assert self._transport is not None
        self._transport.write(request)
        answer = read_answer(self._incoming, limit)
        try:
            while True:
                # In the task and not in a call of the loop, so that it counts as its CPU time.
                next(answer)
                await self._more()
        except StopIteration as end:
            body, stays = end.value
        self._is_asked = False
        # More than was asked for is no answer to the next request.
        return body, stays and not self._incoming.data

    async def _more(self) -> None:
        """Wait for bytes, or for the end."""
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_asked:
            self.close()
            return
        self.has_answered = True
        self._incoming.data += _buffer.view[:nbytes]
        self._wake()

    def eof_received(self) -> None:
        self._incoming.ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc or ConnectionResetError("the connection was closed")
        self._wake()
