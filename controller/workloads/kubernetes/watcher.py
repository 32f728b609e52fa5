# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""This node's pods as the API server has them: one list, then a watch, in a thread of its own."""

from collections.abc import Iterable, Mapping
import logging
from random import Random
import threading
import time
from types import MappingProxyType
from typing import Any

from controller.kube.api import Api
from controller.kube.backoff import Backoff
from controller.kube.errors import ApiError, ApiNonsense, ApiUnreachable, watch_may_go_on
from controller.kube.sparing import Sparing
from controller.kube.troubles import Troubles
from controller.units import NS_PER_SEC
from controller.workloads.kubernetes.pod import Pod, PodError, Pods, parse_pod

__all__ = ("PodWatcher",)

_log = logging.getLogger(__name__)

_PODS = "/api/v1/pods"
# The server ends a watch after this long. Not all at once: they come back.
_WATCH_S = (240, 300)


class PodWatcher:
    """Keeps ``pods`` up to date until closed; any thread may read it without a lock.

    While the API server does not answer, what it said last stays. ``failure`` is a bug with which
    the thread ended; the control thread must raise it.

    :param node: the name of this host's Node object.
    :param label_keys: labels to keep beside those that mean something to everybody.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        label_keys: frozenset[str] = frozenset(),
        backoff: Backoff | None = None,
    ) -> None:
        self._api = api
        self._node = node
        self._select = {"fieldSelector": f"spec.nodeName={node}"}
        self._random = Random()  # noqa: S311 - jitter is no secret
        self._backoff = backoff or Backoff(self._random)
        self._label_keys = label_keys
        self._sparing = Sparing(_log)
        self._roll = _Roll(node, label_keys, self._sparing)
        # Of the last list or event; None: a list is needed.
        self._version: str | None = None
        # Not older than this. "0": whatever the server has in memory, rather than every node of
        # the cluster asking etcd for all pods after the server was started anew.
        self._list_from = "0"
        self._contact_ns: int | None = None
        self._troubles = Troubles(_log)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pod-watcher", daemon=True)
        self.pods = Pods(time_ns=time.monotonic_ns())
        self.lists = 0
        self.watches = 0
        self.failure: Exception | None = None
        self._thread.start()

    def age_s(self, now_ns: int) -> float | None:
        """Return the time since the API server confirmed ``pods`` last, None before it ever did.

        On a quiet node it does so about every minute.
        """
        contact_ns = self._contact_ns
        return None if contact_ns is None else max(0, now_ns - contact_ns) / NS_PER_SEC

    @property
    def errors(self) -> Mapping[str, int]:
        """How many requests failed, by ``unreachable`` or HTTP status."""
        return self._troubles.counts

    @property
    def problem(self) -> str:
        """Why ``pods`` is not kept up to date now, empty if it is."""
        return "; ".join(self._troubles.last.values())

    def close(self) -> None:
        """End, whatever the thread waits for."""
        self._closed.set()
        self._api.end(self._thread)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                # A watch that ends at once, time and again, is slowed down like a failure.
                self._closed.wait(self._backoff.next_s(self._follow()))
        except Exception as error:  # the control thread raises it
            self.failure = error

    def _follow(self) -> float | None:
        """List if need be and watch to the end; return for how long the server wants peace."""
        try:
            if self._version is None:
                self._list()
            self._watch()
        except (ApiError, ApiUnreachable) as error:
            if not watch_may_go_on(error):
                self._version = None
            expired = getattr(error, "status", None) == 410  # nothing is wrong
            if not (expired or self._closed.is_set()):
                self._troubles.failed("pods", error)
            return getattr(error, "retry_after_s", None)
        return None

    def _list(self) -> None:
        told = self._roll.refused.values()
        roll = _Roll(self._node, self._label_keys, self._sparing, told)
        try:
            version = self._api.items(
                _PODS, {**self._select, "resourceVersion": self._list_from}, roll.add
            )
        except ApiError as error:
            # After etcd was restored from a backup the server's present is our future.
            if error.status == 410 or "Too large resource version" in error.message:
                self._list_from = ""
            raise
        self._roll = roll
        self._version = self._list_from = version
        self.lists += 1
        self._confirmed()
        self._publish()

    def _watch(self) -> None:
        query = {
            **self._select,
            "resourceVersion": self._version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._random.randint(*_WATCH_S)),
        }
        with self._api.watch(_PODS, query) as events:
            self.watches += 1
            self._confirmed()
            for event in events:
                self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, raw = event.get("type"), event.get("object")
        version = _metadata(raw).get("resourceVersion")
        if not isinstance(raw, dict) or not isinstance(version, str):
            raise ApiNonsense("an event that makes no sense")
        if kind == "DELETED":
            changed = self._roll.remove(raw)
        elif kind in ("ADDED", "MODIFIED"):
            changed = self._roll.add(raw)
        else:  # BOOKMARK, and what later servers may have
            changed = False
        self._version = self._list_from = version
        self._confirmed()
        if changed:
            self._publish()

    def _confirmed(self) -> None:
        self._contact_ns = time.monotonic_ns()
        self._troubles.worked("pods")

    def _publish(self) -> None:
        # Two objects may claim to be the same static pod. It does not matter which is taken: who
        # says that is `system`.
        pods = {pod.uid: pod for pod in self._roll.pods.values()}
        self.pods = Pods(
            time_ns=time.monotonic_ns(),
            pods=MappingProxyType(pods),
            synced=True,
            refused=len(self._roll.refused),
        )


class _Roll:
    """Pods of a node, and why others were refused, by the ids of their objects.

    These are not always the ids of the pods: those of static pods are in their manifests.

    :param told: what was logged already.
    """

    def __init__(
        self, node: str, label_keys: frozenset[str], sparing: Sparing, told: Iterable[str] = ()
    ) -> None:
        self._node = node
        self._label_keys = label_keys
        self._sparing = sparing
        self._told = frozenset(told)
        self.pods: dict[str, Pod] = {}
        self.refused: dict[str, str] = {}

    def add(self, raw: Mapping[str, Any]) -> bool:
        """Take the object as it is now; return whether that changes anything for us."""
        spec = raw.get("spec")
        node = spec.get("nodeName") if isinstance(spec, Mapping) else None
        if isinstance(node, str) and node != self._node:
            # Nobody asked for it. Whoever forgot what we asked for has the pods of all nodes.
            return self.remove(raw)
        key = _key(raw)
        try:
            pod = parse_pod(raw, self._label_keys)
        except PodError as error:
            text = str(error)
            if text not in self._told and self.refused.get(key) != text:
                self._sparing.warning(text)
            self.pods.pop(key, None)
            self.refused[key] = text
            return True
        changed = self.refused.pop(key, None) is not None or self.pods.get(key) != pod
        if changed:
            self.pods[key] = pod
        return changed

    def remove(self, raw: Mapping[str, Any]) -> bool:
        """Forget the object; return whether that changes anything for us."""
        key = _key(raw)
        known = self.pods.pop(key, None) is not None
        return (self.refused.pop(key, None) is not None) or known


def _key(raw: Mapping[str, Any]) -> str:
    return str(_metadata(raw).get("uid"))[:64]


def _metadata(raw: object) -> Mapping[str, Any]:
    found = raw.get("metadata") if isinstance(raw, Mapping) else None
    return found if isinstance(found, Mapping) else {}
