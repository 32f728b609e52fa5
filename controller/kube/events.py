# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Events for ``kubectl get events`` and ``kubectl describe``: few, short, never waited for.

What happens again to the same object becomes a series of the Event that is there. Beyond a
rate nothing is sent and only counted; an API server that is away loses Events and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
import time
from typing import Any, Literal, NamedTuple

from controller.kube.client.api import Api, PatchKind, segment
from controller.kube.client.errors import ApiError
from controller.kube.client.worker import Worker

__all__ = ("EventType", "Events", "Regarding")

EventType = Literal["Normal", "Warning"]

# Limits of the API (pkg/apis/core/validation/events.go).
_LONGEST_NOTE_BYTES = 1024
_LONGEST_INSTANCE = 128
_CONTROLLER = "sweetpoint.dev/agent"
# The same within this time is one series, as client-go has it.
_SERIES_S = 360.0
_MOST_SERIES = 256
_BURST = 20.0
# Of these, for warnings alone: what was done to a pod must not go under in how often and why.
_RESERVE = 8.0
_PER_SECOND = 1 / 6


class Regarding(NamedTuple):
    """The object that an Event is about; ``namespace`` is empty for a node."""

    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class _Series:
    """An Event and how often it happened; ``sent``: the server has it."""

    path: str
    body: dict[str, Any]
    last_s: float
    count: int = 1
    sent: bool = False


class Events:
    """Tells the API server; ``emit`` is for one thread and returns at once.

    ``dropped`` counts what was not sent, because there was too much.

    :param clock: seconds of CLOCK_MONOTONIC; *wall_clock* since the epoch.
    """

    def __init__(
        self,
        api: Api,
        worker: Worker,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._worker = worker
        self._node = node
        self._clock = clock
        self._wall_clock = wall_clock
        self._series: dict[tuple[Regarding, str], _Series] = {}
        self._tokens = _BURST
        self._filled_s = clock()
        self._number = 0
        self.dropped = 0

    def emit(
        self, regarding: Regarding, reason: str, note: str, kind: EventType = "Normal"
    ) -> None:
        """Tell that *reason*, a word in CamelCase, happened to *regarding*; *note* for people."""
        now_s = self._clock()
        key = regarding, reason
        series = self._series.get(key)
        if series is None or now_s - series.last_s > _SERIES_S:
            series = self._begin(regarding, reason, note, kind, now_s)
            self._series.pop(key, None)  # so that the dictionary is in order of time
            self._series[key] = series
            if len(self._series) > _MOST_SERIES:
                del self._series[next(iter(self._series))]
        else:
            series.count += 1
            series.last_s = now_s
        if not self._may_send(now_s, 0.0 if kind == "Warning" else _RESERVE):
            self.dropped += 1
            return
        count, last = series.count, self._time()
        if not self._worker.submit(lambda: self._send(series, count, last), "event"):
            self.dropped += 1

    def _begin(
        self, regarding: Regarding, reason: str, note: str, kind: EventType, now_s: float
    ) -> _Series:
        # An Event lies in the namespace of its object; without one in this.
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
            "reportingInstance": self._node[:_LONGEST_INSTANCE],
            "action": reason,
            "reason": reason,
            "type": kind,
            "regarding": {**about, "uid": regarding.uid},
            "note": _bounded(note),
        }
        path = f"/apis/events.k8s.io/v1/namespaces/{segment(namespace)}/events"
        return _Series(path, body, now_s)

    def _may_send(self, now_s: float, kept: float) -> bool:
        self._tokens = min(_BURST, self._tokens + (now_s - self._filled_s) * _PER_SECOND)
        self._filled_s = now_s
        if self._tokens < 1 + kept:
            return False
        self._tokens -= 1
        return True

    def _send(self, series: _Series, count: int, last: str) -> None:
        # In the worker's thread. The Event may have expired at the server meanwhile, or be there
        # although its creation was not answered.
        news = {"series": {"count": count, "lastObservedTime": last}} if count > 1 else {}
        if series.sent and news:
            try:
                name = segment(series.body["metadata"]["name"])
                self._api.patch(f"{series.path}/{name}", news, kind=PatchKind.MERGE)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                return
        series.sent = True
        try:
            self._api.create(series.path, {**series.body, **news})
        except ApiError:
            series.sent = False
            raise

    def _time(self) -> str:
        return datetime.fromtimestamp(self._wall_clock(), UTC).isoformat(timespec="microseconds")


def _bounded(note: str) -> str:
    text = note.encode()
    if len(text) <= _LONGEST_NOTE_BYTES:
        return note
    return text[: _LONGEST_NOTE_BYTES - 3].decode(errors="ignore") + "..."
