# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The objects of a collection, followed: a list, then watches, by a thread of its own."""

from collections.abc import Callable, Mapping
import logging
from random import Random
import threading
from typing import Any, Generic, TypeVar

from controller.kube.api import Api
from controller.kube.backoff import Backoff
from controller.kube.errors import ApiError, ApiUnreachable, watch_may_go_on
from controller.kube.troubles import Troubles

__all__ = ("CollectionWatch",)

_log = logging.getLogger(__name__)

_Kept = TypeVar("_Kept")

# As in client-go, so that the watches of many nodes do not end together.
_WATCH_S = 300.0
# Nobody has installed that kind of object (yet).
_ABSENT_S = 300.0
_MOST = 10_000


class CollectionWatch(Generic[_Kept]):
    """Follows the objects of the collection *path* until closed.

    What was kept stays while the API server does not answer, also when it says that there is no
    such kind of object: one that starts says so of those that others define.

    ``failure`` is what *read* or *take* raised: a bug, with which the thread ends; the control
    thread must raise it. ``left_out`` counts objects beyond the 10,000 that are kept.

    :param what: names it in the log.
    :param query: for the list; what is in it beside ``resourceVersion`` for watches, too.
    :param read: called in the thread; what is kept of an object, ``None``: nothing.
    :param take: called in the thread with everything that is kept, by ``namespace/name``, after
        the first list and whenever it is something else than before.
    """

    def __init__(
        self,
        api: Api,
        what: str,
        path: str,
        query: Mapping[str, str],
        read: Callable[[Mapping[str, Any]], _Kept | None],
        take: Callable[[Mapping[str, _Kept]], None],
    ) -> None:
        self._api = api
        self._what = what
        self._path = path
        self._query = query
        self._read = read
        self._take = take
        self._kept: Mapping[str, _Kept] | None = None
        # Of the last list or event; None: a list is needed.
        self._version: str | None = None
        self._random = Random()  # noqa: S311 - jitter is no secret
        self._backoff = Backoff(self._random)
        self._troubles = Troubles(_log)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kube-collection", daemon=True)
        self.left_out = 0
        self.failure: Exception | None = None
        self._thread.start()

    @property
    def errors(self) -> Mapping[str, int]:
        """How many requests failed, by ``unreachable`` or HTTP status."""
        return self._troubles.counts

    @property
    def problem(self) -> str:
        """Why it cannot be read now; empty if it can."""
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
            return max(wait_s, self._random.uniform(0.5, 1.0) * _ABSENT_S * (status == 404))
        # A server that ends every watch at once is not to be asked without a pause.
        return self._backoff.next_s()

    def _list(self) -> str:
        found: dict[str, _Kept] = {}
        self.left_out = 0

        def take(raw: Mapping[str, Any]) -> None:
            self._put(found, _key(raw), self._read(raw))

        version = self._api.items(self._path, self._query, take)
        self._troubles.worked(self._what)
        if found != self._kept:
            self._kept = found
            self._take(found)
        return version

    def _watch(self, version: str) -> None:
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(self._random.uniform(0.8, 1.0) * _WATCH_S)),
        }
        with self._api.watch(self._path, query) as events:
            for event in events:
                changed = event.get("object")
                if isinstance(changed, dict):
                    self._version = _text(changed, "resourceVersion") or self._version
                    self._change(event.get("type"), changed)

    def _change(self, kind: object, changed: Mapping[str, Any]) -> None:
        if kind not in ("ADDED", "MODIFIED", "DELETED"):  # BOOKMARK, and what later servers have
            return
        before, key = self._kept or {}, _key(changed)
        kept = None if kind == "DELETED" else self._read(changed)
        if before.get(key) != kept:
            after = {name: each for name, each in before.items() if name != key}
            self._put(after, key, kept)
            self._kept = after
            self._take(after)

    def _put(self, objects: dict[str, _Kept], key: str, kept: _Kept | None) -> None:
        if kept is None:
            return
        if len(objects) < _MOST:
            objects[key] = kept
            return
        self.left_out += 1
        if self.left_out == 1:
            _log.warning("%s: more than %d; no others are read", self._what, _MOST)


def _key(raw: Mapping[str, Any]) -> str:
    return f"{_text(raw, 'namespace')}/{_text(raw, 'name')}"


def _text(raw: Mapping[str, Any], field: str) -> str:
    meta = raw.get("metadata")
    value = meta.get(field) if isinstance(meta, dict) else None
    return value[:256] if isinstance(value, str) else ""
