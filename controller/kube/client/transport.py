# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP transport to the API server on the Kubernetes package, with one connection per request.

This module is imported with the first request, because the package takes 35 MiB, which a host
outside any cluster need not spend.

Connections are not reused. Another thread or a deadline can therefore abort a request in any
blocking call (time-outs of sockets apply to a single read only), a rotated certificate is used at
once, and the server cannot close a pooled connection. The cost is a handshake every few seconds.

``ChunkDecoder`` decodes chunked bodies (RFC 9112, section 7.1) although http.client can: that takes
four reads through many layers for each watch event, and 20 pod changes a second make it count.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse, IncompleteRead
import os
from pathlib import Path
import re
import socket
import ssl
from tempfile import TemporaryDirectory
import threading
from typing import Any

from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError
from urllib3.exceptions import TimeoutError as SocketTimeout
import yaml

from controller.kube.client.errors import ApiSilent, ApiUnreachable
from controller.kube.client.inline_tls import inline_tls, missing_file
from controller.kube.client.request import Request

__all__ = (
    "ChunkDecoder",
    "ChunkError",
    "Response",
    "Server",
    "load",
)

_END = b"\r\n"
# The size, and chunk extensions, which are ignored.
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_MAX_LINE_BYTES = 1024


class ChunkError(Exception):
    """The data is not a valid chunked body."""


class ChunkDecoder:
    """Incremental decoder of a chunked body.

    ``ended``: the last chunk was decoded; trailers and other data after it are ignored.
    """

    # Not shared with service_level/fetch.py, whose limit applies to the announced size of a chunk.
    def __init__(self) -> None:
        self.ended = False
        self._rest = b""
        # Bytes of the current chunk not yet received, without the line end that follows them.
        self._left = 0
        self._inside = False

    def decode(self, data: bytes) -> bytes:
        """Return the part of the body in *data*, the next bytes of the connection.

        :raises ChunkError: the data is not valid.
        """
        data, at = self._rest + data, 0
        body = []
        while not self.ended:
            part = data[at : at + self._left]
            body.append(part)
            at += len(part)
            self._left -= len(part)
            end = data.find(_END, at)
            if self._left or end < 0:
                break
            self._line(data[at:end])
            at = end + len(_END)
        self._rest = b"" if self.ended else data[at:]
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ChunkError("a line without an end")
        return b"".join(body)

    def _line(self, line: bytes) -> None:
        if self._inside:
            if line:
                raise ChunkError("a chunk that is longer than its size")
            self._inside = False
            return
        size = _SIZE.fullmatch(line)
        if size is None:
            raise ChunkError("a chunk without a size")
        self._left = int(size[1], 16)
        self._inside = True
        self.ended = self._left == 0


_current = threading.local()


class _Response(HTTPResponse):
    """Response whose ``read1`` returns all received data of a chunked body at once.

    The API server sends an event as one chunk in two segments, for which http.client makes four
    reads, each through many layers. A body must be read either with ``read1`` only or without it.
    """

    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self._socket = sock
        self._decoder = ChunkDecoder()

    def read1(self, n: int = -1) -> bytes:
        if not self.chunked:
            return super().read1(n)
        body = b""
        while not (body or self._decoder.ended):
            data = self.fp.read1(n)
            if not data:
                raise IncompleteRead(b"")
            body = self._decoder.decode(data + self._read_available(n - len(data)))
        return body

    def _read_available(self, size: int) -> bytes:
        # Reads the socket directly: the buffer of self.fp is empty after a read that returned less
        # than requested.
        parts = []
        timeout_s = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            while size > 0 and (part := self._socket.recv(size)):
                parts.append(part)
                size -= len(part)
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        finally:
            self._socket.settimeout(timeout_s)
        return b"".join(parts)


class _Http(HTTPConnection):
    response_class = _Response

    def connect(self) -> None:
        super().connect()
        _current.request.set_connection(self.sock)


class _Https(HTTPSConnection):
    response_class = _Response

    def connect(self) -> None:
        super().connect()
        _current.request.set_connection(self.sock)


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https


_POOLS = {"http": _HttpPool, "https": _HttpsPool}


class Response:
    """A response whose body is read incrementally; must be closed."""

    def __init__(self, response: BaseHTTPResponse, request: Request) -> None:
        self._response = response
        self._request = request
        self.status = response.status
        self.reason = response.reason or ""

    def header(self, name: str) -> str | None:
        """Return the header *name*, ``None`` if there is none."""
        return self._response.headers.get(name)

    def read(self, size: int) -> bytes:
        """Return *size* bytes of the body, fewer only at its end.

        :raises ApiUnreachable: the connection failed, was aborted, or timed out.
        """
        with _as_unreachable(self._request):
            data = self._response.read(size, decode_content=False)
        return self._checked(data, size)

    def read_some(self, size: int) -> bytes:
        """Return the received data, at least 1 byte and at most *size* bytes; none at the end.

        :raises ApiSilent: there was none within the limit.
        :raises ApiUnreachable: the connection failed or was aborted.
        """
        with _as_unreachable(self._request):
            try:
                data = self._response.read1(size, decode_content=False)
            except SocketTimeout as error:
                raise ApiSilent(_reason(error)) from None
        return self._checked(data, 1)

    def gather(self, wait_s: float) -> None:
        """Wait for 64 KiB of data or the end of the connection, at most *wait_s* seconds."""
        with _as_unreachable(self._request):
            self._request.gather(wait_s)

    def _checked(self, data: bytes, expected: int) -> bytes:
        # An aborted connection looks like the end of a response without a length.
        if len(data) < expected and self._request.abort_reason:
            raise ApiUnreachable(self._request.abort_reason)
        return data

    def close(self) -> None:
        """Close the connection."""
        self._request.close()
        connection = self._response.connection
        self._response.close()
        if connection is not None:
            connection.close()


class Server:
    """Address of the API server and the credentials for it; thread-safe.

    :param tls: the arguments of a connection pool in place of files, see ``inline_tls``.
    """

    def __init__(self, configuration: Configuration, tls: Mapping[str, Any]) -> None:
        self._configuration = configuration
        self._tls = tls

    def send(
        self,
        request: Request,
        method: str,
        target: str,
        *,
        body: object,
        content_type: str,
        connect_s: float,
        silence_s: float,
    ) -> Response:
        """Send a request and return the response, of any status, once its head was received.

        :param target: path and query.
        :param connect_s: time limit for connecting, in seconds.
        :param silence_s: time limit for a single read, in seconds.
        :raises ApiUnreachable: there is no response.
        """
        configuration = self._configuration
        if missing := missing_file(configuration, self._tls):
            raise ApiUnreachable(f"{missing} does not exist: the kubeconfig or the pod names it")
        client = ApiClient(configuration)
        client.rest_client.pool_manager.pool_classes_by_scheme = _POOLS
        client.rest_client.pool_manager.connection_pool_kw.update(self._tls)
        _current.request = request
        headers = _headers(configuration, None if body is None else content_type)
        with _as_unreachable(request):
            response = client.call_api(
                method,
                configuration.host + target,
                header_params=headers,
                body=body,
                _request_timeout=(connect_s, silence_s),
            )
        return Response(response.response, request)


def load(kubeconfig: Path | None) -> Server:
    """Read the server's address and the credentials.

    :param kubeconfig: ``None``: the pod's service account.
    :raises ApiUnreachable: the file does not exist or is not a kubeconfig.
    """
    # Proxies are taken from the environment, as by every other client of Kubernetes.
    configuration = Configuration()
    configuration.retries = False
    configuration.keep_alive = True
    tls: Mapping[str, Any] = {}
    try:
        if kubeconfig is None:
            load_incluster_config(configuration)
        else:
            with TemporaryDirectory(prefix="sweetpoint-") as inline:
                load_kube_config(
                    str(kubeconfig),
                    client_configuration=configuration,
                    persist_config=False,
                    temp_file_path=inline,
                )
                tls = inline_tls(configuration, Path(inline))
    except (ConfigException, OSError) as error:
        raise ApiUnreachable(f"{kubeconfig or 'in-cluster'}: {error}") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError):
        # The messages of these exceptions quote the file, which holds secrets.
        raise ApiUnreachable(f"{kubeconfig or 'in-cluster'}: not a kubeconfig") from None
    return Server(configuration, tls)


def _headers(configuration: Configuration, content_type: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": "sweetpoint", "Connection": "close"}
    if content_type is not None:
        headers["Content-Type"] = content_type
    try:
        found = configuration.auth_settings().get("BearerToken")
    except (ConfigException, OSError) as error:
        raise ApiUnreachable(f"credentials: {error}") from None
    except ValueError:  # not text; the message of the exception quotes the token
        raise ApiUnreachable("credentials: the token is not one line of text") from None
    token = str(found["value"] or "").strip() if found else ""
    if not re.fullmatch(r"[ -~]*", token):
        raise ApiUnreachable("credentials: the token is not one line of text")
    return {**headers, "Authorization": token} if token else headers


@contextmanager
def _as_unreachable(request: Request) -> Iterator[None]:
    try:
        yield
    except (HTTPError, HTTPException, ApiException, ChunkError, OSError, ValueError) as error:
        raise ApiUnreachable(request.abort_reason or _reason(error)) from None


# OpenSSL reports the end of a connection as an error of its own or without any reason.
_ENDED = "UNEXPECTED_EOF_WHILE_READING"


def _tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "is the configured certificate authority that of this server?"
        return f"TLS: {error.verify_message}; {hint}"
    reason = getattr(error, "reason", None)  # None, or not even set, where OpenSSL names none
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or reason == _ENDED:
        return (
            "the other side closed the connection in the middle of TLS: does a balancer answer "
            "that has no server?"
        )
    return f"TLS: {reason or error.strerror or type(error).__name__}"


def _reason(error: BaseException) -> str:
    if isinstance(error, NameResolutionError):
        return "cannot resolve the server's name"
    if isinstance(error, SocketTimeout) and not isinstance(error, NewConnectionError):
        return "no answer in time"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return _tls(cause)
        if isinstance(cause, OSError) and not isinstance(cause, HTTPError) and cause.errno:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, ApiException):  # the Kubernetes package wraps TLS errors in this
        return f"TLS: {error.reason or type(error).__name__}"
    return f"the connection failed ({type(error).__name__})"
