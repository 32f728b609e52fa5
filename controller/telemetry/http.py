# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP server of the pages of ``pages``, in threads of its own.

The threads only read published state, so a slow or hostile client can delay a tick only through
its share of the interpreter, which the limits of ``http_limits`` keep small.

It is built on http.server of the standard library, because five pages do not justify the dependency
on a web framework, which would need the same limits.
"""

from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from ipaddress import ip_address
import logging
import os
from pathlib import Path
import socket
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from controller.page.hours import Hours
from controller.telemetry.http_limits import (
    Connections,
    CpuTime,
    Pacer,
    Peers,
    TokenError,
    TokenFile,
)
from controller.telemetry.pages import (
    HTML,
    HTML_HEADERS,
    PROTECTED,
    TEXT,
    Page,
    Pages,
    make_pages,
)
from controller.telemetry.report import PublishedState

__all__ = ("StatusServer",)

_log = logging.getLogger(__name__)

_CLIENT_TIMEOUT_S = 5.0
_POLL_S = 0.25  # latency of close()
_RETRY_S = 5.0
_LOG_EVERY_S = 60.0
_MAX_HEAD_BYTES = 16 << 10
# A page about that many workloads takes some milliseconds, and requests share it. On smaller nodes
# every request gets the state of its own moment.
_SHARED_FROM = 200

_MISDIRECTED = (
    HTTPStatus.MISDIRECTED_REQUEST,
    TEXT,
    b"without a token, only by address, as localhost, or by the name of this host\n",
)


class StatusServer:
    """Serves *published* on *address* until closed.

    Where that is not possible (the address is in use or not one of this host, or the file has no
    token), the reason is logged and counted in *published*, and every 5 s it is tried again: the
    control loop must not depend on a port that any user of the host can take.

    :param healthy_ns: /healthz fails if the last tick is at least this old.
    :param token_file: the file with the bearer token for /, /metrics and /statusz, which is also
        the password for HTTP Basic authentication, since browsers have no other; ``None``: no
        token is required.
    :param hours: what the page / shows of the last hours; ``None``: nothing.
    """

    def __init__(
        self,
        published: PublishedState,
        address: tuple[str, int],
        *,
        healthy_ns: int,
        token_file: Path | None = None,
        hours: Hours | None = None,
    ) -> None:
        self._published = published
        self._address = address
        self._token_file = token_file
        self._problem = ""
        self._closing = threading.Event()
        self._cpu = CpuTime()
        details = token_file is None
        self._pages = make_pages(published, hours, healthy_ns=healthy_ns, details=details)
        # The first attempt is made here, so that the pages exist when this returns.
        server = self._listen()
        self._thread = threading.Thread(
            target=self._serve, name="http", daemon=True, args=(server,)
        )
        self._thread.start()

    @property
    def cpu_s(self) -> float:
        """CPU time of the server's threads so far, in seconds."""
        return self._cpu.total_s

    def close(self) -> None:
        """Stop serving without waiting for requests in progress."""
        self._closing.set()
        self._thread.join(2 * _POLL_S)

    def _listen(self) -> "_Server | None":
        host, port = self._address
        try:
            token = None if self._token_file is None else TokenFile(self._token_file)
            server = _Server(self._address, self._pages, token, self._cpu, self._published)
        except (TokenError, OSError, ValueError) as error:  # ValueError: no name of a host
            self._published.http_listen_failures += 1
            problem = str(error)
            if isinstance(error, OSError):
                problem = (
                    f"http: cannot listen on {host}:{port}: {error.strerror}; stop the program "
                    "that uses it, or choose another address, or 'http: off'"
                )
            if problem != self._problem:
                _log.error("%s; running without pages, trying again every %gs", problem, _RETRY_S)
            self._problem = problem
            return None
        if self._problem:
            _log.info("http: listening on %s:%d now", host, port)
        return server

    def _serve(self, server: "_Server | None") -> None:
        while server is None:
            if self._closing.wait(_RETRY_S):
                return
            server = self._listen()
        with server:
            spent_s = time.thread_time()
            while not self._closing.wait(self._cpu.pause_s()):
                server.handle_request()
                server.connections.close_late()
                before_s, spent_s = spent_s, time.thread_time()
                self._cpu.spend(spent_s - before_s)


_Request = socket.socket | tuple[bytes, socket.socket]


class _Server(ThreadingHTTPServer):
    # A client that stalls blocks only its own thread, until the time-out.
    daemon_threads = True
    timeout = _POLL_S
    # Large enough that a kubelet probe's SYN is not dropped, and sent again, while other clients
    # open many connections.
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        pages: Pages,
        token: TokenFile | None,
        cpu: CpuTime,
        published: PublishedState,
    ) -> None:
        self._published = published
        self.pages = pages
        self.token = token
        self.cpu = cpu
        self.pacer: Pacer[Page] = Pacer()
        self.connections = Connections()
        self._peers = Peers()
        self._logged_s = -_LOG_EVERY_S
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def shares_pages(self) -> bool:
        """Return whether pages are so expensive that requests share them."""
        report = self._published.report
        return report is not None and len(report.workloads) >= _SHARED_FROM

    def verify_request(self, request: _Request, client_address: Any) -> bool:
        assert isinstance(request, socket.socket)
        peer = client_address[0]
        # Connections to an address of this host have that address at both ends.
        if peer == request.getsockname()[0] or self._peers.admit(peer):
            return True
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            _log.warning(
                "http: too many requests from %s, refused (logged once a minute at most); limit "
                "the access to this port, for example by a network policy",
                peer,
            )
        return False

    def process_request(self, request: _Request, client_address: Any) -> None:
        assert isinstance(request, socket.socket)
        self.connections.add(request, client_address[0])
        super().process_request(request, client_address)

    def shutdown_request(self, request: _Request) -> None:
        assert isinstance(request, socket.socket)
        self.connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: _Request, client_address: object) -> None:
        error = sys.exception()
        if isinstance(error, OSError):  # either side closed the connection
            _log.debug("%s: %s", client_address, error)
        else:
            _log.error("a page failed", exc_info=error)


class _Head:
    """The lines that a client sends, 16 KiB in total; http.server alone would keep 6 MiB."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._left = _MAX_HEAD_BYTES
        self._file = file
        self.close = file.close

    def readline(self, limit: int) -> bytes:
        line = self._file.readline(min(limit, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head")
        return line


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S
    server_version = "sweetpoint"
    sys_version = ""
    _page_cpu_s = 0.0

    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.rfile)  # type: ignore[assignment]  # all that is called of a file

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        try:
            super().handle()
        except LineTooLong:  # the first line; for the others there is status 431
            return
        finally:
            # The thread was made for this request.
            self.server.cpu.spend(time.thread_time(), self._page_cpu_s)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        status, kind, body = self._refusal(path) or self._page(path)
        self.send_response(status)
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
            if path == "/":  # a browser asks for a name, which does not matter, and the password
                self.send_header("WWW-Authenticate", 'Basic realm="sweetpoint", charset="UTF-8"')
        self.send_header("Content-Type", kind)
        if kind == HTML:
            for name, value in HTML_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _page(self, path: str) -> Page:
        assert isinstance(self.server, _Server)
        page = self.server.pages.get(path)
        if page is None:
            return HTTPStatus.NOT_FOUND, TEXT, b"not found\n"
        if path not in PROTECTED:
            return page()
        busy = HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"too many requests\n"
        began_s = time.thread_time()
        made = self.server.pacer.make(page, path if self.server.shares_pages() else "")
        self._page_cpu_s = time.thread_time() - began_s
        return made or busy

    def _refusal(self, path: str) -> Page | None:
        assert isinstance(self.server, _Server)
        if path not in PROTECTED:
            return None
        if self.server.token is None:
            return None if _is_own(self.headers.get("Host", "")) else _MISDIRECTED
        given = self.headers.get_all("Authorization", [])
        try:
            if len(given) == 1 and self.server.token.admits(given[0]):
                return None
        except TokenError:  # the reason is in the log and not disclosed to clients
            return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"no token is configured\n"
        return HTTPStatus.UNAUTHORIZED, TEXT, b"a bearer token is required\n"

    def log_message(self, format: str, *args: object) -> None:
        _log.debug(format, *args)


def _is_own(host: str) -> bool:
    """Return whether the header *host* has no name that a stranger may resolve to this address.

    Such a name would make this server part of the stranger's site for a browser (DNS rebinding).
    Programs other than browsers may send no such header.
    """
    try:
        name = urlsplit(f"//{host}").hostname
        if name in (None, "localhost", os.uname().nodename.lower()):
            return True
        ip_address(name or "")
    except ValueError:
        return False
    return True
