# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API in raw JSON: get, list, watch, create, patch, delete.

Nothing here retries; a request ends within a time limit whatever the server does, and its answer
is bounded. The model classes of the Kubernetes client are not used: they take 57 MiB more.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
import json
from pathlib import Path
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from controller.kube.client.errors import ApiError, ApiInvalidResponse, ApiUnreachable
from controller.kube.client.json_stream import ListError, read_list
from controller.kube.client.request import Request

if TYPE_CHECKING:
    from controller.kube.client.transport import Response, Server

__all__ = ("Api", "Limits", "PatchKind", "segment")

# etcd takes objects of 1.5 MiB in protobuf; JSON may need twice that.
_LONGEST_OBJECT = 8 << 20
_LONGEST_ERROR = 64 << 10
_CHUNK = 64 << 10
_LONGEST_RETRY_AFTER_S = 600.0
# Its own message to that is "Unauthorized".
_UNKNOWN = (
    "the server does not know our token: it expired, it is another cluster's, or its pod or "
    "service account is gone; it is read again with every attempt"
)
# Credentials in a kubeconfig's token file: kubelet renews a projected token when a fifth of its
# life, which is at least ten minutes, is left.
_RELOAD_S = 60.0
_END_S, _CUT_EVERY_S = 2.0, 0.05


class PatchKind(StrEnum):
    """How the API server is to understand a patch."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long to wait, in seconds: for a connection, an answer to its last byte, a long list.

    A watch is given up after ``silence_s`` without a word; the server sends a bookmark about
    every minute (bookmarkFrequency in k8s.io/apiserver/pkg/storage/cacher). Events that follow
    another within ``gather_s`` are taken together.
    """

    connect_s: float = 5.0
    answer_s: float = 15.0
    list_s: float = 60.0
    silence_s: float = 100.0
    gather_s: float = 0.2


class Api:
    """The API server, for several threads at a time; connects with the first request.

    Every request raises ``ApiError`` if the server says no and ``ApiUnreachable`` if there is no
    answer, or none that makes sense, or no way to ask.

    :param kubeconfig: says where the server is and who we are; ``None``: this pod's service
        account. Read again every minute, and after the server did not know us.
    """

    def __init__(self, kubeconfig: Path | None = None, limits: Limits | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._loaded: tuple[float, Server] | None = None
        self._calls: dict[int, Request] = {}

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the object at *path*, of at most 8 MiB."""
        return self._ask("GET", _target(path, query))

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post *body* to the collection or subresource *path*; return what came of it."""
        return self._ask("POST", path, body)

    def patch(self, path: str, body: object, *, kind: PatchKind) -> dict[str, Any]:
        """Patch the object at *path*; return it as it is now."""
        return self._ask("PATCH", path, body, kind)

    def delete(self, path: str) -> None:
        """Delete the object at *path*."""
        self._ask("DELETE", path)

    def items(
        self, path: str, query: Mapping[str, str], take: Callable[[dict[str, Any]], object]
    ) -> str:
        """Pass each object of the list at *path* to *take* as it comes; return the list's version.

        What *take* raises comes through.
        """
        with self._request("GET", _target(path, query), self._limits.list_s) as answer:
            chunks = iter(lambda: answer.read(_CHUNK), b"")
            try:
                rest = read_list(chunks, take, longest=_LONGEST_OBJECT)
            except ListError as error:
                raise ApiInvalidResponse(f"not a list: {error}") from None
        metadata = rest.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(version, str):
            raise ApiInvalidResponse("a list without a resourceVersion")
        return version

    @contextmanager
    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[Iterator[dict[str, Any]]]:
        """Watch the collection *path*: yield an iterator over its events, which ends with them.

        The iterator raises like a request; an event of type ERROR is raised as an ``ApiError``.
        """
        target = _target(path, {**query, "watch": "1"})
        with self._request("GET", target, self._limits.answer_s, watch=True) as answer:
            yield _events(answer, self._limits.gather_s)

    def cut(self, thread: threading.Thread) -> None:
        """Make the request that *thread* is in fail at once, if it is in one."""
        call = self._calls.get(thread.ident or 0)
        if call is not None:
            call.cut("cut off by ourselves")

    def end(self, thread: threading.Thread) -> None:
        """Cut off whatever *thread* asks until it has ended, for two seconds at most."""
        until_s = time.monotonic() + _END_S
        while thread.is_alive() and time.monotonic() < until_s:
            # Again and again: it may be about to begin a request.
            self.cut(thread)
            thread.join(_CUT_EVERY_S)

    def _ask(
        self, method: str, target: str, body: object = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        with self._request(method, target, self._limits.answer_s, body, kind) as answer:
            return _object(_whole(answer))

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
        call = self._calls[ident] = Request()
        silence_s = self._limits.silence_s if watch else limit_s
        try:
            server = self._server()
            call.within(limit_s)
            answer = server.send(
                call,
                method,
                target,
                body=body,
                content_type=kind,
                connect_s=self._limits.connect_s,
                silence_s=silence_s,
            )
            try:
                if answer.status >= 300:
                    raise self._refusal(answer)
                if watch:
                    call.in_time()
                yield answer
            finally:
                answer.close()
        except ApiUnreachable as error:
            error.asked = call.stood
            raise
        finally:
            call.ended()
            del self._calls[ident]

    def _server(self) -> "Server":
        from controller.kube.client import transport

        with self._lock:
            now = time.monotonic()
            if self._loaded is None or now - self._loaded[0] > _RELOAD_S:
                self._loaded = now, transport.load(self._kubeconfig)
            return self._loaded[1]

    def _refusal(self, answer: "Response") -> ApiError:
        if answer.status == 401:
            with self._lock:
                self._loaded = None
        text = answer.read(_LONGEST_ERROR)
        try:
            status = _object(text)
        except ApiInvalidResponse:  # from a proxy, or from before the handlers
            status = {"message": text[:1000].decode(errors="replace")}
        if answer.status == 401 and status.get("message") == status.get("reason"):
            status = {**status, "message": _UNKNOWN}
        return _error(answer.status, answer.reason, status, answer.header("Retry-After"))


def segment(text: str) -> str:
    """Return *text*, which somebody else may have chosen, fit as one segment of a path.

    :raises ValueError: it cannot be one.
    """
    if text in ("", ".", "..") or "/" in text or "\0" in text or len(text) > 253:
        raise ValueError(f"{text[:64]!r} cannot be a name")
    return quote(text, safe="")


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _whole(answer: "Response") -> bytes:
    found = answer.read(_LONGEST_OBJECT + 1)
    if len(found) > _LONGEST_OBJECT:
        raise ApiInvalidResponse(f"an answer of more than {_LONGEST_OBJECT >> 20} MiB")
    return found


def _object(text: bytes | bytearray) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ApiInvalidResponse("an answer that is not JSON") from None
    if not isinstance(found, dict):
        raise ApiInvalidResponse("an answer that is not an object")
    return found


def _events(answer: "Response", gather_s: float) -> Iterator[dict[str, Any]]:
    for text in _lines(answer, gather_s):
        event = _object(text)
        if event.get("type") == "ERROR":
            status = event.get("object")
            status = status if isinstance(status, dict) else {}
            code = status.get("code")
            raise _error(code if isinstance(code, int) else 500, "", status, None)
        yield event


def _lines(answer: "Response", gather_s: float) -> Iterator[bytearray]:
    text = bytearray()
    while part := answer.read_some(_CHUNK):
        searched = len(text)
        text += part
        while (end := text.find(b"\n", searched)) >= 0:
            yield text[:end]
            del text[: end + 1]
            searched = 0
        if len(text) > _LONGEST_OBJECT:
            raise ApiInvalidResponse(f"an event of more than {_LONGEST_OBJECT >> 20} MiB")
        if not text:
            # A thread that wakes for each event pays several times what that takes in a row, for
            # its caches are cold.
            answer.gather(gather_s)
    if text.strip():
        raise ApiUnreachable("it ended in the middle of an event")


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
    # A date, which RFC 9110 allows as well, is nothing that the API server sends.
    text = str(value)
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 0:
        return None
    return min(float(text), _LONGEST_RETRY_AFTER_S)
