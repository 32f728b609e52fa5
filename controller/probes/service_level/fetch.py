# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP GET for many sources in one thread: asyncio streams and the standard library's parser.

A blocking client would need a thread per source, and its time-out applies to a single read only:
a server that sends one byte a second would occupy the thread for hours. Here the caller sets one
deadline for everything from the name look-up to the last byte. Redirects are not followed,
proxies are not used, and the size of the answer is bounded. An asyncio client library would add
3 MB of dependencies for these 200 lines.
"""

import asyncio
import http.client
import io
import os
from pathlib import Path
import re
import socket
import ssl
import threading
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from controller.config.sections.service_sources import Endpoint
from controller.probes.service_level.ledger import Reason, SourceError
from controller.probes.service_level.parse import printable

__all__ = ("FetchLoop", "fetch")

_MAX_HEAD_BYTES = 16 << 10
_MAX_SECRET_BYTES = 8 << 10
_MAX_LOOKUPS = 8


class FetchLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for name look-ups when it is closed.

    The default loop runs them in a thread pool, which a program has to wait for at its end,
    however long an unreachable name server takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lookups = 0

    async def getaddrinfo(self, host: Any, port: Any, **options: int) -> list[Any]:
        """Look up *host* in a daemon thread.

        :raises SourceError: eight look-ups are in progress already.
        """
        if self._lookups >= _MAX_LOOKUPS:
            raise SourceError(Reason.CONNECT, "too many name look-ups are in progress")
        self._lookups += 1
        future: asyncio.Future[list[Any]] = self.create_future()
        threading.Thread(
            target=self._look_up, args=(future, host, port, options), daemon=True
        ).start()
        return await future

    def _look_up(
        self, future: "asyncio.Future[list[Any]]", host: Any, port: Any, options: dict[str, int]
    ) -> None:
        found: list[Any] | Exception
        try:
            found = list(socket.getaddrinfo(host, port, **options))
        except (OSError, UnicodeError) as error:
            found = OSError(f"cannot find {printable(host)}: {printable(error)}")

        def set_outcome() -> None:
            self._lookups -= 1
            if future.done():  # the request was cancelled
                return
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)

        try:
            self.call_soon_threadsafe(set_outcome)
        except RuntimeError:  # the loop has been closed
            return


async def fetch(endpoint: Endpoint, target: str, *, accept: str, limit: int) -> bytes:
    """Return the body of a GET for *target* (path and query), at most *limit* bytes.

    :raises SourceError: the request failed, or the answer is not status 200, too long, compressed
        or malformed.
    :raises TimeoutError: only at the caller's deadline (``asyncio.timeout``); there is none here.
    """
    url = urlsplit(endpoint.url)
    secure = url.scheme == "https"
    port = url.port or (443 if secure else 80)
    request = _request(endpoint, url, target, accept)
    try:
        reader, writer = await asyncio.open_connection(
            url.hostname,
            port,
            ssl=_tls(endpoint.ca_file) if secure else None,
            limit=_MAX_HEAD_BYTES,
        )
        try:
            writer.write(request)
            return await _answer(reader, limit)
        finally:
            writer.transport.abort()
    except (ssl.SSLError, ssl.CertificateError) as error:
        names = (getattr(error, name, None) for name in ("verify_message", "reason", "strerror"))
        reason = next(filter(None, names), "failed")
        raise SourceError(Reason.TLS, f"TLS: {printable(reason)}") from None
    except TimeoutError:
        raise
    except OSError as error:
        number = error.errno or 0
        text = os.strerror(number) if number > 0 else str(error)
        raise SourceError(Reason.CONNECT, text) from None
    except asyncio.IncompleteReadError:
        raise SourceError(Reason.CONNECT, "the server closed the connection too early") from None
    except (asyncio.LimitOverrunError, http.client.LineTooLong):
        raise SourceError(Reason.TOO_BIG, "the head of the answer is too long") from None
    except http.client.HTTPException:
        raise SourceError(Reason.FORMAT, "the answer is not HTTP") from None


def _request(endpoint: Endpoint, url: SplitResult, target: str, accept: str) -> bytes:
    headers = {
        "Host": url.netloc,
        "User-Agent": "sweetpoint",
        "Accept": accept,
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    if endpoint.token_file is not None:
        headers["Authorization"] = f"Bearer {_secret(endpoint.token_file)}"
    for name, file in endpoint.header_files:
        headers[name] = _secret(file)
    lines = (f"GET {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", "")
    return "\r\n".join(lines).encode("ascii")


async def _answer(reader: asyncio.StreamReader, limit: int) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    response = http.client.HTTPResponse(cast(socket.socket, _HeadAsSocket(head)))
    response.begin()
    if 300 <= response.status < 400:
        location = printable(response.getheader("Location", "nowhere"))
        raise SourceError(Reason.REDIRECT, f"redirects to {location}; not followed")
    if response.status != 200:
        raise SourceError(Reason.STATUS, f"HTTP status {response.status}")
    if response.getheader("Content-Encoding", "identity").lower() != "identity":
        raise SourceError(Reason.FORMAT, "the answer is compressed, which was not requested")
    if response.length is not None:
        if response.length > limit:
            raise SourceError(Reason.TOO_BIG, _too_big(limit))
        return await reader.readexactly(response.length)
    return await (_chunks if response.chunked else _rest)(reader, limit)


async def _rest(reader: asyncio.StreamReader, limit: int) -> bytes:
    body = bytearray()
    while part := await reader.read(limit + 1):
        body += part
        if len(body) > limit:
            raise SourceError(Reason.TOO_BIG, _too_big(limit))
    return bytes(body)


async def _chunks(reader: asyncio.StreamReader, limit: int) -> bytes:
    # RFC 9112 section 7.1; extensions and trailers are ignored. Not the decoder of
    # kube/client/transport.py: this one refuses a chunk by its announced size, before reading it.
    body = bytearray()
    while True:
        size = (await reader.readuntil(b"\r\n")).partition(b";")[0].strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", size):
            raise SourceError(Reason.FORMAT, "the answer is not HTTP: a chunk without a size")
        length = int(size, 16)
        if length == 0:
            return bytes(body)
        if len(body) + length > limit:
            raise SourceError(Reason.TOO_BIG, _too_big(limit))
        body += await reader.readexactly(length)
        await reader.readuntil(b"\r\n")


def _too_big(limit: int) -> str:
    return f"the answer is larger than {limit >> 10} KiB"


class _HeadAsSocket:
    """The one socket method that ``HTTPResponse`` calls, for a head that is read already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _secret(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise SourceError(Reason.SECRET, f"{file}: {error.strerror}") from None
    text = raw.strip()
    # A line break would start another header.
    if not re.fullmatch(rb"[ -~]+", text) or len(raw) > _MAX_SECRET_BYTES:
        raise SourceError(Reason.SECRET, f"{file}: must hold one line of ASCII text")
    return text.decode("ascii")


_contexts: dict[tuple[Path | None, int], ssl.SSLContext] = {}


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    # Reading the system's authorities takes tens of ms: done once, and when the file changes.
    try:
        key = ca_file, 0 if ca_file is None else ca_file.stat().st_mtime_ns
        if key not in _contexts:
            for old in [k for k in _contexts if k[0] == ca_file]:
                del _contexts[old]
            _contexts[key] = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SourceError(
            Reason.TLS, f"{ca_file}: {error.strerror or 'not a certificate'}"
        ) from None
    return _contexts[key]
