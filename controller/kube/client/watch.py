# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Watches of a collection and of one ConfigMap: a list, then watches, in a thread of their own."""

from collections.abc import Callable, Mapping
import logging
from random import Random
import threading
import time
from typing import Any, Generic, TypeVar

from controller.core.units import NS_PER_SEC
from controller.kube.client.api import Api, segment
from controller.kube.client.errors import (
    ApiError,
    ApiInvalidResponse,
    ApiSilent,
    ApiUnreachable,
    RequestErrors,
    can_resume_watch,
)
from controller.kube.client.rate_limit import Backoff

__all__ = (
    "CollectionWatch",
    "ConfigMapWatch",
)

_log = logging.getLogger(__name__)

_Parsed = TypeVar("_Parsed")

# Duration of a watch, as in client-go; random so that the nodes of a cluster do not reconnect
# together. Each watch takes a TLS handshake.
_WATCH_S = (300, 600)
# So many silent watches are resumed before the next list. A kind that does not change then costs 4
# requests in 300 s, where a list after each one would make 6.
_LIST_AFTER = 3
# Longest pause while the kind of object is not installed.
_ABSENT_S = 300.0
_MAX_OBJECTS = 10_000


class CollectionWatch(Generic[_Parsed]):
    """Lists and watches the collection *path* until closed, in a thread of its own.

    The objects are kept while the API server does not answer, and also when it answers that the
    kind does not exist: a server that is starting does so for custom resources. At most 10,000
    objects are kept; the rest is ignored with a warning.

    ``failure`` is an exception of *parse* or *publish*: a bug, which ends the thread and must be
    raised by the control thread.

    :param what: the name of the collection in the log.
    :param query: the query of the list; watches use it without ``resourceVersion``. Lists after the
        first one are not older than the state that was read last.
    :param parse: called in the thread; returns what is kept of an object, ``None`` for nothing.
    :param publish: called in the thread with all parsed objects by ``namespace/name``, after the
        first list and after each change. The mapping is not modified afterwards.
    """

    def __init__(
        self,
        api: Api,
        what: str,
        path: str,
        query: Mapping[str, str],
        parse: Callable[[Mapping[str, Any]], _Parsed | None],
        publish: Callable[[Mapping[str, _Parsed]], None],
        backoff: Backoff | None = None,
    ) -> None:
        self._api = api
        self._what = what
        self._path = path
        self._query = query
        self._parse = parse
        self._publish = publish
        self._objects: dict[str, _Parsed] | None = None
        # Version of the last list or event; None: a list is needed.
        self._version: str | None = None
        # Lists must not be older than this version; empty: they must be the newest.
        self._min_version = query.get("resourceVersion", "")
        self._silences = 0  # watches without any event, one after the other
        self._contact_ns: int | None = None
        self._random = Random()  # noqa: S311 - jitter needs no secure source
        self._backoff = backoff or Backoff(self._random)
        self._request_errors = RequestErrors(_log)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {what}", daemon=True)
        self._warned_full = False
        self.failure: Exception | None = None
        self._thread.start()

    def age_s(self, now_ns: int) -> float | None:
        """Return the seconds since the server last confirmed the state, ``None`` before the first.

        A bookmark confirms it about every minute while nothing changes.
        """
        contact_ns = self._contact_ns
        return None if contact_ns is None else max(0, now_ns - contact_ns) / NS_PER_SEC

    @property
    def errors(self) -> Mapping[str, int]:
        """The number of failed requests by ``unreachable`` or HTTP status."""
        return self._request_errors.counts

    @property
    def problem(self) -> str:
        """Why the objects are not up to date now; empty if they are."""
        return self._request_errors.last.get(self._what, "")

    @property
    def denied(self) -> Mapping[str, str]:
        """What the server forbids now (HTTP status 403), with its message."""
        return self._request_errors.denied

    def close(self) -> None:
        """Stop the thread and abort its request."""
        self._closing.set()
        self._api.abort_until_ended(self._thread)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._closing.wait(self._once())
        except Exception as error:  # raised by the control thread
            self.failure = error

    def _once(self) -> float:
        """List if necessary and watch until the watch ends; return the next pause in seconds."""
        try:
            if self._version is None:
                self._version = self._list()
            self._watch(self._version)
        except (ApiError, ApiUnreachable) as error:
            if not can_resume_watch(error):
                self._version = None
            if self._closing.is_set():
                return 0.0
            wait_s = self._backoff.next_s(getattr(error, "retry_after_s", None))
            status = getattr(error, "status", None)
            # 410: the version is too old to resume at. A new list follows; this is no failure.
            if status != 410:
                self._request_errors.failed(self._what, error)
            # Only kinds of an API group can be missing.
            absent = status == 404 and self._path.startswith("/apis/")
            return max(wait_s, self._random.uniform(0.5, 1.0) * _ABSENT_S * absent)
        # The pause bounds the rate of requests to a server that ends every watch at once.
        return self._backoff.next_s()

    def _list(self) -> str:
        objects: dict[str, _Parsed] = {}
        self._warned_full = False

        def add(raw: dict[str, Any]) -> None:
            self._put(objects, _key(raw), self._parse(raw))

        query = {**self._query, "resourceVersion": self._min_version}
        try:
            version = self._api.items(self._path, query, add)
        except ApiError as error:
            # Versions of the server are smaller after etcd was restored from a backup.
            if error.status == 410 or "Too large resource version" in error.message:
                self._min_version = ""
            raise
        self._min_version = version
        self._confirm()
        if objects != self._objects:
            self._change(objects)
        return version

    def _watch(self, version: str) -> None:
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._random.randint(*_WATCH_S)),
        }
        with self._api.watch(self._path, query) as events:
            self._confirm()
            try:
                for event in events:
                    self._silences = 0
                    self._apply(event)
            except ApiSilent:
                # Usual where no object of the kind changes; or the connection is dead. The watch
                # that follows tells which, and whether the server is well. The list after some of
                # them finds what a proxy keeps back.
                self._silences += 1
                if self._silences % _LIST_AFTER == 0:
                    self._version = None

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind, raw = event.get("type"), event.get("object")
        version = _text(raw, "resourceVersion") if isinstance(raw, dict) else ""
        if not isinstance(raw, dict) or not version:
            raise ApiInvalidResponse("an event without an object or its version")
        if kind in ("ADDED", "MODIFIED", "DELETED"):  # others: BOOKMARK, and future types
            before, key = self._objects or {}, _key(raw)
            parsed = None if kind == "DELETED" else self._parse(raw)
            if before.get(key) != parsed:
                after = before.copy()
                self._put(after, key, parsed)
                self._change(after)
        self._version = self._min_version = version
        self._confirm()

    def _confirm(self) -> None:
        self._contact_ns = time.monotonic_ns()
        self._request_errors.succeeded(self._what)

    def _change(self, objects: dict[str, _Parsed]) -> None:
        self._objects = objects
        self._publish(objects)

    def _previous(self, raw: Mapping[str, Any]) -> _Parsed | None:
        """Return what is kept of an object before the current event; for use in *parse*."""
        return (self._objects or {}).get(_key(raw))

    def _put(self, objects: dict[str, _Parsed], key: str, parsed: _Parsed | None) -> None:
        if parsed is None:
            objects.pop(key, None)
        elif key in objects or len(objects) < _MAX_OBJECTS:
            objects[key] = parsed
        elif not self._warned_full:
            self._warned_full = True
            _log.warning(
                "%s: there are more than %d; the rest is ignored", self._what, _MAX_OBJECTS
            )


def _key(raw: Mapping[str, Any]) -> str:
    return f"{_text(raw, 'namespace')}/{_text(raw, 'name')}"


def _text(raw: Mapping[str, Any], field: str) -> str:
    meta = raw.get("metadata")
    value = meta.get(field) if isinstance(meta, dict) else None
    return value[:256] if isinstance(value, str) else ""


class ConfigMapWatch(CollectionWatch[Mapping[str, Any]]):
    """Lists and watches the ConfigMap *name* in *namespace* until closed.

    The requests select by ``metadata.name``, which the API server uses as the object's name for
    authorization (RequestInfoFactory in k8s.io/apiserver), so a Role with ``resourceNames`` is
    sufficient. A list is necessary because a watch cannot start at the version of an old object,
    but can at that of a list.

    :param publish: called in the thread with the object after each change, with ``None`` if there
        is none.
    :raises ValueError: *namespace* or *name* cannot be a name.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        publish: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        super().__init__(
            api,
            f"ConfigMap {namespace}/{name}",
            f"/api/v1/namespaces/{segment(namespace)}/configmaps",
            # "0": the state in the server's memory, not one read of etcd per agent.
            {"fieldSelector": f"metadata.name={segment(name)}", "resourceVersion": "0"},
            parse=lambda raw: raw,
            publish=lambda objects: publish(next(iter(objects.values()), None)),
        )
