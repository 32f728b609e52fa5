# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP GET for many sources in one thread.

A blocking client would need a thread per source, and its time-out applies to a single read only:
a server that sends one byte a second would occupy the thread for hours. Here the caller sets one
deadline for everything from the name look-up to the last byte. Redirects are not followed,
proxies are not used, and the size of the answer is bounded. An asyncio client library would add
3 MB of dependencies for what a few hundred lines do.
"""

import asyncio
from functools import lru_cache
import os
from pathlib import Path
import re
import socket
import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

from controller.config.sections.service_sources import Endpoint
from controller.probes.service_level.connection import Client
from controller.probes.service_level.ledger import Reason, SourceError
from controller.probes.service_level.parse import printable

__all__ = ("FetchLoop", "fetch")

_MAX_SECRET_BYTES = 8 << 10
_MAX_LOOKUPS = 8
# The most pods that are asked, and as many other sources as there may be.
_MOST_KEPT = 600


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


async def fetch(
    endpoint: Endpoint, target: str, *, accept: str, limit: int, client: Client | None = None
) -> bytes:
    """Return the body of a GET for *target* (path and query), at most *limit* bytes.

    :param client: of this endpoint alone, which keeps the connection; ``None``: one request.
    :raises SourceError: the request failed, or the answer is not status 200, too long, compressed
        or malformed.
    :raises TimeoutError: only at the caller's deadline (``asyncio.timeout``); there is none here.
    """
    host, port, secure = _server(endpoint.url)
    request = _request(endpoint, target, accept, keeps=client is not None)
    tls = _tls(endpoint.ca_file) if secure else None
    once = Client() if client is None else client
    try:
        return await once.get(host, port, tls, request, limit)
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
    finally:
        if client is None:
            once.close()


@lru_cache(maxsize=_MOST_KEPT)
def _server(url: str) -> tuple[str, int, bool]:
    """Return host and port of *url*, and whether it is a secure one."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    return parts.hostname or "", parts.port or (443 if secure else 80), secure


def _request(endpoint: Endpoint, target: str, accept: str, *, keeps: bool) -> bytes:
    secrets = {name: _secret(file) for name, file in endpoint.header_files}
    if endpoint.token_file is not None:
        secrets["Authorization"] = f"Bearer {_secret(endpoint.token_file)}"
    lines = "".join(f"{name}: {value}\r\n" for name, value in secrets.items())
    return b"%b%b\r\n" % (_head(endpoint.url, target, accept, keeps), lines.encode("ascii"))


@lru_cache(maxsize=_MOST_KEPT)
def _head(url: str, target: str, accept: str, keeps: bool) -> bytes:
    headers = {
        "Host": urlsplit(url).netloc,
        "User-Agent": "sweetpoint",
        "Accept": accept,
        "Accept-Encoding": "identity",
        "Connection": "keep-alive" if keeps else "close",
    }
    lines = (f"GET {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "")
    return "\r\n".join(lines).encode("ascii")


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
