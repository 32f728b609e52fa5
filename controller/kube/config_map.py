# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One ConfigMap, followed: each of its states is passed on, by a thread of its own."""

from collections.abc import Callable, Mapping
import logging
from random import Random
import threading
import time
from typing import Any

from controller.kube.api import Api, segment
from controller.kube.backoff import Backoff
from controller.kube.errors import ApiError, ApiUnreachable
from controller.kube.troubles import Troubles

__all__ = ("ConfigMapWatch",)

_log = logging.getLogger(__name__)

# As in client-go, so that the watches of many nodes do not end together.
_WATCH_S = 300.0
_CUT_S = 2.0


class ConfigMapWatch:
    """Follows the ConfigMap *name* in *namespace* until closed.

    It lists and watches by ``metadata.name``, which the API server takes for the object's name
    when it decides who may (RequestInfoFactory in k8s.io/apiserver), so a Role with
    ``resourceNames`` is enough. The version of an old object cannot be watched from; that of a
    list can.

    ``failure`` is what *take* raised: a bug, with which the thread ends.

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
        self._api = api
        self._what = f"ConfigMap {namespace}/{name}"
        self._path = f"/api/v1/namespaces/{segment(namespace)}/configmaps"
        self._query = {"fieldSelector": f"metadata.name={segment(name)}"}
        self._take = take
        self._seen: tuple[object, object] | None = None
        self._random = Random()  # noqa: S311 - jitter is no secret
        self._backoff = Backoff(self._random)
        self._troubles = Troubles(_log)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kube-config-map", daemon=True)
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
        until_s = time.monotonic() + _CUT_S
        while self._thread.is_alive() and time.monotonic() < until_s:
            # Again and again: the thread may be about to begin a request.
            self._api.cut(self._thread)
            self._thread.join(0.05)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._closing.wait(self._once())
        except Exception as error:  # the control thread raises it
            self.failure = error

    def _once(self) -> float:
        """Follow it until the watch ends; return how many seconds to wait before the next."""
        try:
            self._follow()
        except (ApiError, ApiUnreachable) as error:
            if self._closing.is_set():
                return 0.0
            wait_s = self._backoff.next_s(getattr(error, "retry_after_s", None))
            # What was too old to go on from is listed anew, and nobody's trouble.
            if not (isinstance(error, ApiError) and error.status == 410):
                self._troubles.failed(self._what, error)
            return wait_s
        # A server that ends every watch at once is not to be asked without a pause.
        return self._random.uniform(0.5, 1.5)

    def _follow(self) -> None:
        found: list[dict[str, Any]] = []
        version = self._api.items(self._path, self._query, found.append)
        self._troubles.worked(self._what)
        self._tell(found[0] if found else None)
        seconds = self._random.uniform(0.8, 1.0) * _WATCH_S
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(seconds)),
        }
        with self._api.watch(self._path, query) as events:
            self._backoff.reset()
            for event in events:
                kind, changed = event.get("type"), event.get("object")
                if kind == "DELETED":
                    self._tell(None)
                elif kind in ("ADDED", "MODIFIED") and isinstance(changed, dict):
                    self._tell(changed)

    def _tell(self, found: Mapping[str, Any] | None) -> None:
        meta = (found or {}).get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        seen = (meta.get("uid"), meta.get("resourceVersion"))
        if seen != self._seen:
            self._seen = seen
            self._take(found)
