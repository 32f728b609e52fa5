# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP to the API server over the Kubernetes client: one connection per request.

Imported with the first request, because the client takes 35 MiB that a host outside any cluster
need not pay. Every request has a connection of its own: another thread, or a deadline, can cut
it whatever it waits for (time-outs of sockets hold for a single read only), a rotated
certificate is used at once, and no server can close it while it lies in a pool. A handshake
every few seconds costs nothing beside that.

PURE: the body of an HTTP answer, taken out of its chunks as they come (RFC 9112, 7.1).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse, IncompleteRead
import os
from pathlib import Path
import re
import socket
import ssl
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

from controller.kube.client.errors import ApiUnreachable
from controller.kube.client.request import Request

__all__ = (
    "ChunkError",
    "Chunks",
    "Response",
    "Server",
    "load",
)

_END = b"\r\n"
# The size, and extensions, which nobody uses.
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_LONGEST_LINE = 1024


class ChunkError(Exception):
    """This is no body in chunks."""


class Chunks:
    """``ended``: the last chunk has come; trailers after it, or whatever it is, do not count."""

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""
        # Bytes of the chunk that have not come; what ends it is yet to come as well.
        self._left = 0
        self._inside = False

    def take(self, data: bytes) -> bytes:
        """Return what of the body is in *data*, the next bytes of the connection.

        :raises ChunkError: it makes no sense.
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
        if len(self._rest) > _LONGEST_LINE:
            raise ChunkError("a line without an end")
        return b"".join(body)

    def _line(self, line: bytes) -> None:
        if self._inside:
            if line:
                raise ChunkError("a chunk that is longer than it said")
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
    """Gives who asks for what there is everything that has come of a body in chunks.

    The API server sends an event as one chunk in two pieces, for which http.client takes four
    reads, each through many layers. A body is read in this way or in the other from its beginning.
    """

    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self._socket = sock
        self._chunks = Chunks()

    def read1(self, n: int = -1) -> bytes:
        if not self.chunked:
            return super().read1(n)
        body = b""
        while not (body or self._chunks.ended):
            came = self.fp.read1(n)
            if not came:
                raise IncompleteRead(b"")
            body = self._chunks.take(came + self._more(n - len(came)))
        return body

    def _more(self, most: int) -> bytes:
        # Past the buffer: nothing is left there after a read that gave less than was asked for.
        parts = []
        timeout_s = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            while most > 0 and (part := self._socket.recv(most)):
                parts.append(part)
                most -= len(part)
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        finally:
            self._socket.settimeout(timeout_s)
        return b"".join(parts)


class _Http(HTTPConnection):
    response_class = _Response

    def connect(self) -> None:
        super().connect()
        _current.call.connected(self.sock)


class _Https(HTTPSConnection):
    response_class = _Response

    def connect(self) -> None:
        super().connect()
        _current.call.connected(self.sock)


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https


_POOLS = {"http": _HttpPool, "https": _HttpsPool}


class Response:
    """What came back, whose body is read bit by bit; must be closed."""

    def __init__(self, response: BaseHTTPResponse, call: Request) -> None:
        self._response = response
        self._call = call
        self.status = response.status
        self.reason = response.reason or ""

    def header(self, name: str) -> str | None:
        """Return a header, None if there is none of that name."""
        return self._response.headers.get(name)

    def read(self, size: int) -> bytes:
        """Return *size* bytes, fewer only at the end.

        :raises ApiUnreachable: the connection broke, was cut, or nothing came in time.
        """
        with _translated(self._call):
            found = self._response.read(size, decode_content=False)
        return self._checked(found, size)

    def read_some(self, size: int) -> bytes:
        """Return what has come, at least one byte and at most *size*; none at the end.

        :raises ApiUnreachable: the connection broke, was cut, or nothing came in time.
        """
        with _translated(self._call):
            found = self._response.read1(size, decode_content=False)
        return self._checked(found, 1)

    def gather(self, wait_s: float) -> None:
        """Wait until much has come, or the end, or for *wait_s* seconds."""
        with _translated(self._call):
            self._call.gather(wait_s)

    def _checked(self, found: bytes, expected: int) -> bytes:
        # A connection that was cut looks like the end of an answer without a length.
        if len(found) < expected and self._call.why_cut:
            raise ApiUnreachable(self._call.why_cut)
        return found

    def close(self) -> None:
        """Hang up."""
        self._call.ended()
        connection = self._response.connection
        self._response.close()
        if connection is not None:
            connection.close()


class Server:
    """Where the API server is and who we are there; for several threads at a time."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def send(
        self,
        call: Request,
        method: str,
        target: str,
        *,
        body: object,
        content_type: str,
        connect_s: float,
        silence_s: float,
    ) -> Response:
        """Send a request and return the answer when its head has come, whatever its status.

        :param target: path and query.
        :raises ApiUnreachable: there is no answer.
        """
        configuration = self._configuration
        client = ApiClient(configuration)
        client.rest_client.pool_manager.pool_classes_by_scheme = _POOLS
        _current.call = call
        headers = _headers(configuration, None if body is None else content_type)
        with _translated(call):
            response = client.call_api(
                method,
                configuration.host + target,
                header_params=headers,
                body=body,
                _request_timeout=(connect_s, silence_s),
            )
        return Response(response.response, call)


def load(kubeconfig: Path | None) -> Server:
    """Return where the server is and who we are there, read anew.

    :raises ApiUnreachable: there is no such file, or it makes no sense.
    """
    # Proxies come from the environment, as for every other client of Kubernetes.
    configuration = Configuration()
    configuration.retries = False
    configuration.keep_alive = True
    try:
        if kubeconfig is None:
            load_incluster_config(configuration)
        else:
            load_kube_config(
                str(kubeconfig), client_configuration=configuration, persist_config=False
            )
    except (ConfigException, OSError) as error:
        raise ApiUnreachable(f"{kubeconfig or 'in-cluster'}: {error}") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError):
        # Their texts quote the file, which holds secrets.
        raise ApiUnreachable(f"{kubeconfig or 'in-cluster'}: not a kubeconfig") from None
    return Server(configuration)


def _headers(configuration: Configuration, content_type: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": "sweetpoint", "Connection": "close"}
    if content_type is not None:
        headers["Content-Type"] = content_type
    try:
        found = configuration.auth_settings().get("BearerToken")
    except (ConfigException, OSError) as error:
        raise ApiUnreachable(f"credentials: {error}") from None
    except ValueError:  # not text; its own words quote it
        raise ApiUnreachable("credentials: the token is not one line of text") from None
    token = str(found["value"] or "").strip() if found else ""
    if not re.fullmatch(r"[ -~]*", token):
        raise ApiUnreachable("credentials: the token is not one line of text")
    return {**headers, "Authorization": token} if token else headers


@contextmanager
def _translated(call: Request) -> Iterator[None]:
    try:
        yield
    except (HTTPError, HTTPException, ApiException, ChunkError, OSError, ValueError) as error:
        raise ApiUnreachable(call.why_cut or _reason(error)) from None


def _tls(error: ssl.SSLError) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.reason}"
    hint = "is the certificate authority that we were given this server's?"
    return f"TLS: {error.verify_message}; {hint}"


def _reason(error: BaseException) -> str:
    if isinstance(error, NameResolutionError):
        return "cannot find the server's address"
    if isinstance(error, SocketTimeout) and not isinstance(error, NewConnectionError):
        return "no answer in time"
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            return _tls(seen)
        if isinstance(seen, OSError) and not isinstance(seen, HTTPError) and seen.errno:
            return os.strerror(seen.errno)
        seen = seen.__cause__ or seen.__context__
    if isinstance(error, ApiException):  # this is how the client wraps TLS errors
        return f"TLS: {error.reason}"
    return f"the connection broke ({type(error).__name__})"
