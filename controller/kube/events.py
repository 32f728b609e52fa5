# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes Events about pods and the node, shown by ``kubectl get events`` and ``describe``.

Events are sent asynchronously and best-effort. Repetitions of a reason at the same object become a
series of the first Event. A token bucket bounds the rate; Events beyond it are counted and dropped.
Each Event, and each repetition, is a write to etcd: with one a minute 5,000 nodes make 83 a second.
An Event whose creation has no answer is sent once more. While the API server is unreachable only
Events are lost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
import time
from typing import Any, Literal, NamedTuple

from controller.kube.client.api import Api, PatchKind, segment
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.client.rate_limit import TokenBucket
from controller.kube.client.worker import Worker
from controller.kube.reasons import Reason

__all__ = ("EventType", "Events", "Regarding")

EventType = Literal["Normal", "Warning"]

# Limits of the API (pkg/apis/core/validation/events.go).
_MAX_NOTE_BYTES = 1024
_MAX_INSTANCE_LENGTH = 128
_CONTROLLER = "sweetpoint.dev/agent"
# An Event repeated within this time of the last one joins its series, as in client-go.
_SERIES_S = 360.0
_MAX_SERIES = 256
_BURST = 20.0
# Tokens of the burst that only warnings may take, so that a flood of Events about squeezes does not
# suppress those about evictions.
_WARNING_RESERVE = 8.0
_PER_SECOND = 1 / 60


class Regarding(NamedTuple):
    """The object that an Event is about; ``namespace`` is empty for a node."""

    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class _Series:
    """An Event and the number of its occurrences; ``sent``: it was created at the API server."""

    path: str
    body: dict[str, Any]
    last_s: float
    count: int = 1
    sent: bool = False


class Events:
    """Sender of Events in the worker's thread; ``emit`` is for one thread and does not block.

    ``dropped`` counts the occurrences that were not sent because of the rate or a full queue.

    :param enabled: otherwise no Event is sent, and none is counted as dropped.
    :param clock: seconds of CLOCK_MONOTONIC.
    :param wall_clock: seconds since the epoch, for the time stamps of Events.
    """

    def __init__(
        self,
        api: Api,
        worker: Worker,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        *,
        enabled: bool = True,
    ) -> None:
        self._enabled = enabled
        self._api = api
        self._worker = worker
        self._node = node
        self._clock = clock
        self._wall_clock = wall_clock
        self._series: dict[tuple[Regarding, str, str], _Series] = {}
        self._bucket = TokenBucket(_BURST, _PER_SECOND, clock())
        self._number = 0
        self.dropped = 0

    def emit(
        self,
        regarding: Regarding,
        reason: Reason,
        note: str,
        kind: EventType = "Normal",
        topic: str = "",
    ) -> None:
        """Emit an Event about *regarding*.

        :param note: the text for people; at most 1,024 bytes of it are sent, and of a repetition
            nothing.
        :param topic: with another one it is no repetition.
        """
        if not self._enabled:
            return
        now_s = self._clock()
        key = regarding, reason, topic
        series = self._series.get(key)
        if series is None or now_s - series.last_s > _SERIES_S:
            series = self._begin(regarding, reason, note, kind, now_s)
            self._series.pop(key, None)  # keeps the dictionary ordered by time of creation
            self._series[key] = series
            if len(self._series) > _MAX_SERIES:
                del self._series[next(iter(self._series))]
        else:
            series.count += 1
            series.last_s = now_s
        if not self._bucket.take(now_s, 0.0 if kind == "Warning" else _WARNING_RESERVE):
            self.dropped += 1
            return
        count, last = series.count, self._time()
        if not self._worker.submit(lambda: self._send(series, count, last), "event"):
            self.dropped += 1

    def _begin(
        self, regarding: Regarding, reason: Reason, note: str, kind: EventType, now_s: float
    ) -> _Series:
        # The API requires the object's namespace, or "default" for objects without one.
        namespace = regarding.namespace or "default"
        self._number = max(self._number + 1, int(self._wall_clock() * 1e6))
        name = f"{regarding.name[:230].rstrip('-.')}.{self._number:x}"
        about = {"apiVersion": "v1", "kind": regarding.kind, "name": regarding.name}
        about |= {"namespace": regarding.namespace} if regarding.namespace else {}
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": name},
            "eventTime": self._time(),
            "reportingController": _CONTROLLER,
            "reportingInstance": self._node[:_MAX_INSTANCE_LENGTH],
            "action": reason,
            "reason": reason,
            "type": kind,
            "regarding": {**about, "uid": regarding.uid},
            "note": _bounded(note),
        }
        path = f"/apis/events.k8s.io/v1/namespaces/{segment(namespace)}/events"
        return _Series(path, body, now_s)

    def _send(self, series: _Series, count: int, last: str, *, again: bool = False) -> None:
        # Runs in the worker's thread. The Event may have expired at the server in the meantime, or
        # exist although the response to its creation was lost.
        repetition = {"series": {"count": count, "lastObservedTime": last}} if count > 1 else {}
        if series.sent and repetition:
            try:
                name = segment(series.body["metadata"]["name"])
                self._api.patch(f"{series.path}/{name}", repetition, kind=PatchKind.MERGE)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                return
        series.sent = True
        try:
            self._api.create(series.path, {**series.body, **repetition})
        except ApiUnreachable:
            # One slow answer must not take the only Event about an eviction.
            if not again:
                self._worker.submit(lambda: self._send(series, count, last, again=True), "event")
            raise
        except ApiError as error:
            if again and error.status == HTTPStatus.CONFLICT:
                return
            series.sent = False
            raise

    def _time(self) -> str:
        return datetime.fromtimestamp(self._wall_clock(), UTC).isoformat(timespec="microseconds")


def _bounded(note: str) -> str:
    text = note.encode()
    if len(text) <= _MAX_NOTE_BYTES:
        return note
    return text[: _MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."
