# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Client of the Kubernetes API in raw JSON: get, list, watch, create, patch, delete.

Requests are not retried. Each one ends within a time limit whatever the server does, and its
response is bounded in size.

The model classes of the Kubernetes package are not used: they take 57 MiB more, and offer neither
a deadline for a whole request nor a way to abort one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
import json
import logging
from pathlib import Path
from random import Random
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from controller.kube.client.errors import ApiError, ApiInvalidResponse, ApiUnreachable
from controller.kube.client.json_stream import ListError, read_list
from controller.kube.client.rate_limit import RateLimitedLogger
from controller.kube.client.request import Request

if TYPE_CHECKING:
    from controller.kube.client.transport import Response, Server

__all__ = ("Api", "Limits", "PatchKind", "segment")

_log = RateLimitedLogger(logging.getLogger(__name__))

# etcd accepts objects of 1.5 MiB in protobuf; JSON may need twice that.
_MAX_OBJECT_BYTES = 8 << 20
_MAX_ERROR_BYTES = 64 << 10
_CHUNK_BYTES = 64 << 10
_MAX_RETRY_AFTER_S = 600.0
# Replaces the server's own message, which is just "Unauthorized".
_UNAUTHORIZED = (
    "the server does not accept the token: it expired, it is of another cluster, or its pod or "
    "service account was deleted; it is read again with every attempt"
)
# Interval of reading credentials again. kubelet renews a projected token when a fifth of its
# lifetime, which is at least ten minutes, is left.
_RELOAD_S = 60.0
# Parts of silence_s. One event reaches the watches of all nodes at once, which are silent together
# after it; they must not be resumed together.
_SILENCE = (0.8, 1.0)
_ABORT_WITHIN_S, _ABORT_EVERY_S = 2.0, 0.05


class PatchKind(StrEnum):
    """The content types of patches that the API server supports and the agent uses."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits in seconds.

    ``connect_s``: for the connection. ``answer_s``: for a whole request up to the last byte of the
    response; ``list_s``: the same for a list. ``silence_s``: a watch ends after this time without
    data, or after down to four fifths of it, because its connection may be dead. A server whose
    objects change sends a bookmark about every minute (bookmarkFrequency in
    k8s.io/apiserver/pkg/storage/cacher). ``gather_s``: events of a watch that arrive within this
    time of an event are read together with it.
    """

    connect_s: float = 5.0
    answer_s: float = 15.0
    list_s: float = 60.0
    silence_s: float = 100.0
    gather_s: float = 0.2


class Api:
    """Thread-safe client of one API server; it connects with the first request.

    Every request raises ``ApiError`` if the server answers with an error status, and
    ``ApiUnreachable`` if there is no valid response or no request could be sent.

    :param kubeconfig: the file with the server's address and the credentials; ``None``: this pod's
        service account. It is read again every minute, and after an HTTP status 401.
    """

    def __init__(self, kubeconfig: Path | None = None, limits: Limits | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._limits = limits or Limits()
        self._random = Random()  # noqa: S311 - jitter needs no secure source
        self._lock = threading.Lock()
        self._loaded: tuple[float, Server] | None = None
        self._requests: dict[int, Request] = {}

    def load(self) -> None:
        """Read the server's address and the credentials now, not with the first request.

        :raises ApiUnreachable: they cannot be read.
        """
        self._server()

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the object at *path*, of at most 8 MiB."""
        return self._send("GET", _target(path, query))

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post *body* to the collection or subresource *path*; return the resulting object."""
        return self._send("POST", path, body)

    def patch(self, path: str, body: object, *, kind: PatchKind) -> dict[str, Any]:
        """Patch the object at *path*; return the patched object."""
        return self._send("PATCH", path, body, kind)

    def delete(self, path: str) -> None:
        """Delete the object at *path*."""
        self._send("DELETE", path)

    def items(
        self, path: str, query: Mapping[str, str], handle: Callable[[dict[str, Any]], object]
    ) -> str:
        """List the collection at *path*: call *handle* with each object while the list is read.

        Exceptions of *handle* are passed on.

        :returns: the ``resourceVersion`` of the list.
        """
        with self._request("GET", _target(path, query), self._limits.list_s) as response:
            chunks = iter(lambda: response.read(_CHUNK_BYTES), b"")
            try:
                rest = read_list(chunks, handle, longest=_MAX_OBJECT_BYTES)
            except ListError as error:
                raise ApiInvalidResponse(f"not a list: {error}") from None
        metadata = rest.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(version, str):
            raise ApiInvalidResponse("a list without a resourceVersion")
        return version

    @contextmanager
    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[Iterator[dict[str, Any]]]:
        """Watch the collection *path*: yield an iterator over its events.

        The iterator stops when the server ends the watch. It raises the errors of a request, and
        an ``ApiError`` for an event of type ERROR.
        """
        target = _target(path, {**query, "watch": "1"})
        with self._request("GET", target, self._limits.answer_s, watch=True) as response:
            yield _events(response, self._limits.gather_s)

    def abort(self, thread: threading.Thread) -> None:
        """Abort the request that *thread* is making, if any: it raises ``ApiUnreachable``."""
        request = self._requests.get(thread.ident or 0)
        if request is not None:
            request.abort("aborted by the agent")

    def abort_until_ended(self, thread: threading.Thread) -> None:
        """Abort every request of *thread* until it has ended, for two seconds at most."""
        until_s = time.monotonic() + _ABORT_WITHIN_S
        while thread.is_alive() and time.monotonic() < until_s:
            # Repeated, because the thread may be about to begin another request.
            self.abort(thread)
            thread.join(_ABORT_EVERY_S)

    def _send(
        self, method: str, target: str, body: object = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        with self._request(method, target, self._limits.answer_s, body, kind) as response:
            return _object(_read_body(response))

    @contextmanager
    def _request(
        self,
        method: str,
        target: str,
        limit_s: float,
        body: object = None,
        kind: str = "application/json",
        *,
        watch: bool = False,
    ) -> Iterator["Response"]:
        ident = threading.get_ident()
        request = self._requests[ident] = Request()
        silence_s = limit_s
        if watch:
            silence_s = self._limits.silence_s * self._random.uniform(*_SILENCE)
        try:
            server = self._server()
            request.start_deadline(limit_s)
            response = server.send(
                request,
                method,
                target,
                body=body,
                content_type=kind,
                connect_s=self._limits.connect_s,
                silence_s=silence_s,
            )
            try:
                if response.status >= 300:
                    raise self._api_error(response)
                if watch:
                    request.cancel_deadline()
                yield response
            finally:
                response.close()
        except ApiUnreachable as error:
            error.possibly_sent = request.was_connected
            raise
        finally:
            request.close()
            del self._requests[ident]

    def _server(self) -> "Server":
        from controller.kube.client import transport

        with self._lock:
            now = time.monotonic()
            if self._loaded is None or now - self._loaded[0] > _RELOAD_S:
                self._loaded = now, transport.load(self._kubeconfig)
            return self._loaded[1]

    def _api_error(self, response: "Response") -> ApiError:
        if response.status == 401:
            with self._lock:
                self._loaded = None
        text = response.read(_MAX_ERROR_BYTES)
        try:
            status = _object(text)
        except ApiInvalidResponse:  # from a proxy, or a filter in front of the API handlers
            status = {"message": text[:1000].decode(errors="replace")}
        if response.status == 401 and status.get("message") == status.get("reason"):
            status = {**status, "message": _UNAUTHORIZED}
        return _error(response.status, response.reason, status, response.header("Retry-After"))


def segment(text: str) -> str:
    """Return *text*, which may come from an untrusted object, quoted as one segment of a path.

    :raises ValueError: *text* cannot be a segment.
    """
    if text in ("", ".", "..") or "/" in text or "\0" in text or len(text) > 253:
        raise ValueError(f"{text[:64]!r} cannot be a name")
    return quote(text, safe="")


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _read_body(response: "Response") -> bytes:
    body = response.read(_MAX_OBJECT_BYTES + 1)
    if len(body) > _MAX_OBJECT_BYTES:
        raise ApiInvalidResponse(f"a response of more than {_MAX_OBJECT_BYTES >> 20} MiB")
    return body


def _object(text: bytes | bytearray) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise _TooDeepError("a response that is nested too deeply") from None
    except ValueError:
        raise ApiInvalidResponse("a response that is not JSON") from None
    if not isinstance(found, dict):
        raise ApiInvalidResponse("a response that is not a JSON object")
    return found


class _TooDeepError(ApiInvalidResponse):
    """A response is nested too deeply for the decoder."""


def _events(response: "Response", gather_s: float) -> Iterator[dict[str, Any]]:
    for text in _lines(response, gather_s):
        try:
            event = _object(text)
        except _TooDeepError:  # the object of one tenant must not end the watch of all
            _log.warning("the object of an event is nested too deeply: left out")
            continue
        if event.get("type") == "ERROR":
            status = event.get("object")
            status = status if isinstance(status, dict) else {}
            code = status.get("code")
            raise _error(code if isinstance(code, int) else 500, "", status, None)
        yield event


def _lines(response: "Response", gather_s: float) -> Iterator[bytearray]:
    text = bytearray()
    while part := response.read_some(_CHUNK_BYTES):
        searched = len(text)
        text += part
        while (end := text.find(b"\n", searched)) >= 0:
            yield text[:end]
            del text[: end + 1]
            searched = 0
        if len(text) > _MAX_OBJECT_BYTES:
            raise ApiInvalidResponse(f"an event of more than {_MAX_OBJECT_BYTES >> 20} MiB")
        if not text:
            # A thread that wakes up for each event finds cold caches and needs several times the
            # CPU time of reading the same events in a row.
            response.gather(gather_s)
    if text.strip():
        raise ApiUnreachable("the watch ended in the middle of an event")


def _error(code: int, reason: str, status: Mapping[str, Any], retry_after: str | None) -> ApiError:
    details = status.get("details")
    details = details if isinstance(details, dict) else {}
    causes = details.get("causes")
    return ApiError(
        code,
        str(status.get("reason") or reason),
        str(status.get("message", "")),
        _seconds(retry_after) or _seconds(details.get("retryAfterSeconds")),
        tuple(
            str(cause.get("reason"))[:100]
            for cause in (causes[:10] if isinstance(causes, list) else ())
            if isinstance(cause, dict)
        ),
    )


def _seconds(value: object) -> float | None:
    # RFC 9110 also allows a date, which the API server does not send.
    text = str(value)
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 0:
        return None
    return min(float(text), _MAX_RETRY_AFTER_S)
