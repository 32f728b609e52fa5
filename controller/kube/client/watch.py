# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The objects of a collection, followed: a list, then watches, by a thread of its own.

One ConfigMap, followed: each of its states is passed on, by a thread of its own.
"""

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
    ApiUnreachable,
    RequestErrors,
    watch_may_go_on,
)
from controller.kube.client.rate_limit import Backoff

__all__ = (
    "CollectionWatch",
    "ConfigMapWatch",
)

_log = logging.getLogger(__name__)

_Kept = TypeVar("_Kept")

# The server ends a watch after this long. Not all at once: they come back.
_WATCH_S = (240, 300)
# Nobody has installed that kind of object (yet).
_ABSENT_S = 300.0
_MOST = 10_000


class CollectionWatch(Generic[_Kept]):
    """Follows the objects of the collection *path* until closed.

    What was kept stays while the API server does not answer, also when it says that there is no
    such kind of object: one that starts says so of those that others define.

    ``failure`` is what *read* or *take* raised: a bug, with which the thread ends; the control
    thread must raise it. ``left_out`` counts objects beyond the 10,000 that are kept, ``lists``
    how often everything was asked for.

    :param what: names it in the log.
    :param query: for the list; what is in it beside ``resourceVersion`` for watches, too.
        Later lists are not older than what is known.
    :param read: called in the thread; what is kept of an object, ``None``: nothing.
    :param take: called in the thread with everything that is kept, by ``namespace/name``, after
        the first list and whenever it is something else than before; that does not change later.
    """

    def __init__(
        self,
        api: Api,
        what: str,
        path: str,
        query: Mapping[str, str],
        read: Callable[[Mapping[str, Any]], _Kept | None],
        take: Callable[[Mapping[str, _Kept]], None],
        backoff: Backoff | None = None,
    ) -> None:
        self._api = api
        self._what = what
        self._path = path
        self._query = query
        self._read = read
        self._take = take
        self._kept: dict[str, _Kept] | None = None
        # Of the last list or event; None: a list is needed.
        self._version: str | None = None
        self._list_from = query.get("resourceVersion", "")
        self._contact_ns: int | None = None
        self._random = Random()  # noqa: S311 - jitter is no secret
        self._backoff = backoff or Backoff(self._random)
        self._troubles = RequestErrors(_log)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {what}", daemon=True)
        self.lists = 0
        self.left_out = 0
        self.failure: Exception | None = None
        self._thread.start()

    def age_s(self, now_ns: int) -> float | None:
        """Return the time since the server confirmed what is kept last, None before it ever did.

        While nothing changes it does so about every minute.
        """
        contact_ns = self._contact_ns
        return None if contact_ns is None else max(0, now_ns - contact_ns) / NS_PER_SEC

    @property
    def errors(self) -> Mapping[str, int]:
        """How many requests failed, by ``unreachable`` or HTTP status."""
        return self._troubles.counts

    @property
    def problem(self) -> str:
        """Why what is kept is not kept up to date now; empty if it is."""
        return self._troubles.last.get(self._what, "")

    def close(self) -> None:
        """Stop; a request under way is cut off."""
        self._closing.set()
        self._api.end(self._thread)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._closing.wait(self._once())
        except Exception as error:  # the control thread raises it
            self.failure = error

    def _once(self) -> float:
        """Follow it until the watch ends; return how many seconds to wait before the next."""
        try:
            if self._version is None:
                self._version = self._list()
            self._watch(self._version)
        except (ApiError, ApiUnreachable) as error:
            if not watch_may_go_on(error):
                self._version = None
            if self._closing.is_set():
                return 0.0
            wait_s = self._backoff.next_s(getattr(error, "retry_after_s", None))
            status = getattr(error, "status", None)
            # What was too old to go on from is listed anew, and nobody's trouble.
            if status != 410:
                self._troubles.failed(self._what, error)
            # Only a group of kinds can be missing.
            absent = status == 404 and self._path.startswith("/apis/")
            return max(wait_s, self._random.uniform(0.5, 1.0) * _ABSENT_S * absent)
        # A server that ends every watch at once is not to be asked without a pause.
        return self._backoff.next_s()

    def _list(self) -> str:
        found: dict[str, _Kept] = {}
        self.left_out = 0

        def add(raw: dict[str, Any]) -> None:
            self._put(found, _key(raw), self._read(raw))

        query = {**self._query, "resourceVersion": self._list_from}
        try:
            version = self._api.items(self._path, query, add)
        except ApiError as error:
            # After etcd was restored from a backup the server's present is our future.
            if error.status == 410 or "Too large resource version" in error.message:
                self._list_from = ""
            raise
        self._list_from = version
        self.lists += 1
        self._confirmed()
        if found != self._kept:
            self._change(found)
        return version

    def _watch(self, version: str) -> None:
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._random.randint(*_WATCH_S)),
        }
        with self._api.watch(self._path, query) as events:
            self._confirmed()
            for event in events:
                self._apply(event)

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind, raw = event.get("type"), event.get("object")
        version = _text(raw, "resourceVersion") if isinstance(raw, dict) else ""
        if not isinstance(raw, dict) or not version:
            raise ApiInvalidResponse("an event that makes no sense")
        if kind in ("ADDED", "MODIFIED", "DELETED"):  # others: BOOKMARK, and what is yet to come
            before, key = self._kept or {}, _key(raw)
            kept = None if kind == "DELETED" else self._read(raw)
            if before.get(key) != kept:
                after = before.copy()
                self._put(after, key, kept)
                self._change(after)
        self._version = self._list_from = version
        self._confirmed()

    def _confirmed(self) -> None:
        self._contact_ns = time.monotonic_ns()
        self._troubles.worked(self._what)

    def _change(self, objects: dict[str, _Kept]) -> None:
        self._kept = objects
        self._take(objects)

    def _known(self, raw: Mapping[str, Any]) -> _Kept | None:
        """Return what was kept of an object so far; for who reads it in the thread."""
        return (self._kept or {}).get(_key(raw))

    def _put(self, objects: dict[str, _Kept], key: str, kept: _Kept | None) -> None:
        if kept is None:
            objects.pop(key, None)
        elif key in objects or len(objects) < _MOST:
            objects[key] = kept
        else:
            self.left_out += 1
            if self.left_out == 1:
                _log.warning("%s: more than %d; no others are read", self._what, _MOST)


def _key(raw: Mapping[str, Any]) -> str:
    return f"{_text(raw, 'namespace')}/{_text(raw, 'name')}"


def _text(raw: Mapping[str, Any], field: str) -> str:
    meta = raw.get("metadata")
    value = meta.get(field) if isinstance(meta, dict) else None
    return value[:256] if isinstance(value, str) else ""


class ConfigMapWatch(CollectionWatch[Mapping[str, Any]]):
    """Follows the ConfigMap *name* in *namespace* until closed.

    It lists and watches by ``metadata.name``, which the API server takes for the object's name
    when it decides who may (RequestInfoFactory in k8s.io/apiserver), so a Role with
    ``resourceNames`` is enough. The version of an old object cannot be watched from; that of a
    list can.

    :param take: called in the thread with the object whenever it is another one than before, with
        ``None`` when there is none.
    :raises ValueError: there cannot be such a ConfigMap.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        take: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        super().__init__(
            api,
            f"ConfigMap {namespace}/{name}",
            f"/api/v1/namespaces/{segment(namespace)}/configmaps",
            {"fieldSelector": f"metadata.name={segment(name)}"},
            read=lambda raw: raw,
            take=lambda objects: take(next(iter(objects.values()), None)),
        )
