# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An HTTP server for list and watch requests of pods, scripted by a test; no TLS, no RBAC.

Every Node exists, and no permission is refused.
"""

from collections import deque
from collections.abc import Callable
import json
from pathlib import Path
import select
import socket
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.http.raw_server import RawHttpServer, ok, response
from tests.support.kube.kubeconfig import write_kubeconfig

__all__ = ("NODE", "PodServer", "pod", "refusal")

NODE = "node-1"
_NODES = "/api/v1/nodes"
_REVIEWS = "/apis/authorization.k8s.io/"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"

Json = dict[str, Any]
Script = bytes | Callable[[socket.socket], None] | None


def pod(name: str, **metadata: Any) -> Json:
    """Return a BestEffort pod of ``NODE`` whose uid is a hash of its name."""
    uid = f"00000000-0000-4000-8000-{abs(hash(name)) % 10**12:012d}"
    return {
        "metadata": {"uid": uid, "namespace": "shop", "name": name, **metadata},
        "spec": {"nodeName": NODE},
        "status": {"qosClass": "BestEffort", "phase": "Running"},
    }


def _node(name: str) -> Json:
    return {"metadata": {"name": name, "resourceVersion": "1"}}


def refusal(status: int, reason: str, *headers: str) -> bytes:
    """Return a response with a Status object."""
    body = json.dumps({"kind": "Status", "code": status, "reason": reason, "message": "no"})
    return response(status, body.encode(), *headers)


class PodServer(RawHttpServer):
    """Lists ``pods`` and streams the events of ``send_event`` and ``send_raw``.

    Each entry of ``script`` replaces the response to one request, except those about a Node or
    permissions; ``None`` leaves the normal one.
    ``lists`` and ``watches`` are the queries of the received requests. A watch lasts until ``cut``
    or the end of the test.
    """

    def __init__(self, home: Path) -> None:
        self.pods: list[Json] = []
        self.version = 100
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.script: list[Script] = []
        self._events: deque[bytes | None] = deque()
        super().__init__(self._api)
        path = home / f"kubeconfig-{self.port}"
        self.kubeconfig = write_kubeconfig(path, self.url, user={"token": "x"})

    def send_event(self, kind: str, raw: Json) -> None:
        """Send an event to the current watch, or to the next one if there is none."""
        self.version += 1
        metadata = {**raw.get("metadata", {}), "resourceVersion": str(self.version)}
        event = {"type": kind, "object": {**raw, "metadata": metadata}}
        self._events.append(json.dumps(event).encode() + b"\n")

    def send_raw(self, text: bytes) -> None:
        """Send *text* to the current watch, or to the next one if there is none."""
        self._events.append(text)

    def cut(self) -> None:
        """End the current watch, or the next one as soon as it begins if there is none."""
        self._events.append(None)

    def _api(self, connection: socket.socket) -> None:
        words = self.requests[-1].split(" ")
        if len(words) < 2:  # the connection was closed before a request came
            return
        target = urlsplit(words[1])
        query = dict(parse_qsl(target.query, keep_blank_values=True))
        watching = "watch" in query
        if target.path == _NODES:
            self._own_node(connection, query["fieldSelector"].partition("=")[2], watching)
            return
        if target.path.startswith((_NODES, _REVIEWS)):
            connection.sendall(ok(json.dumps(_node(target.path.rpartition("/")[2])).encode()))
            return
        (self.watches if watching else self.lists).append(query)
        answer = self.script.pop(0) if self.script else None
        if callable(answer):
            answer(connection)
        elif answer is not None:
            connection.sendall(answer)
        elif watching:
            self._stream(connection)
        else:
            items = {"metadata": {"resourceVersion": str(self.version)}, "items": self.pods}
            connection.sendall(ok(json.dumps(items).encode()))

    def _own_node(self, connection: socket.socket, name: str, watching: bool) -> None:
        """Answer a list with the Node *name*, and let a watch see no change."""
        if watching:
            connection.sendall(_HEAD)
            while not (self._ended.wait(0.005) or _hung_up(connection)):
                pass
        else:
            items = {"metadata": {"resourceVersion": "1"}, "items": [_node(name)]}
            connection.sendall(ok(json.dumps(items).encode()))

    def _stream(self, connection: socket.socket) -> None:
        connection.sendall(_HEAD)
        while not (self._ended.wait(0.005) or _hung_up(connection)):
            while self._events:
                text = self._events.popleft()
                if text is None:
                    return
                connection.sendall(text)


def _hung_up(connection: socket.socket) -> bool:
    ready, _, _ = select.select([connection], [], [], 0)
    return bool(ready)  # the client sends nothing after its request, so this is the end of file
