# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated API server: keeps objects, merges patches, counts versions.

The tests in tests/kube use a real API server. This one produces at a chosen moment what a real one
does rarely: conflicts, errors and lost responses.
"""

from collections.abc import Callable, Iterator
import copy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import json
from pathlib import Path
import threading
from typing import Any, NamedTuple

from tests.support.kube.kubeconfig import write_kubeconfig

__all__ = ("ApiStandIn", "Asked", "status")

Json = dict[str, Any]


class Asked(NamedTuple):
    """A received request."""

    method: str
    path: str
    body: Json | None
    content_type: str


def status(code: int, message: str, *causes: str, **details: int) -> tuple[int, Json]:
    """Return an error response of the API server."""
    named = {"causes": [{"reason": cause} for cause in causes], **details}
    return code, {"kind": "Status", "message": message, "reason": f"R{code}", "details": named}


class ApiStandIn:
    """Objects by path. ``before`` is called first for every request and may answer it.

    ``watch`` yields the events of a watch, which ends with it.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.asked: list[Asked] = []
        self.before: Callable[[Asked], tuple[int, Json] | None] = lambda _: None
        self.watch: Callable[[Asked], Iterator[Json]] = lambda _: iter(())
        self._version = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> "ApiStandIn":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server to *path* and return *path*."""
        return write_kubeconfig(path, f"http://127.0.0.1:{self._server.server_address[1]}", user={})

    def put(self, path: str, body: Json) -> None:
        """Store *body* at *path* as a new version."""
        self._version += 1
        kept = self.objects[path] = copy.deepcopy(body)
        kept.setdefault("metadata", {})["resourceVersion"] = str(self._version)

    def asked_for(self, method: str) -> list[Asked]:
        """Return the requests with *method*, in order."""
        return [each for each in self.asked if each.method == method]

    def answer(self, asked: Asked) -> tuple[int, Json]:
        """Return status and body of the response to a request."""
        with self._lock:
            self.asked.append(asked)
            return self.before(asked) or self._act(asked)

    def _act(self, asked: Asked) -> tuple[int, Json]:
        path, body = asked.path, asked.body or {}
        if asked.method == "POST":
            if not path.endswith("/eviction"):
                self.put(f"{path}/{body['metadata']['name']}", body)
            return 201, body
        found = self.objects.get(path)
        if found is None:
            return status(404, "not found")
        if asked.method == "PATCH":
            meta = body.get("metadata", {})
            if (
                meta.get("resourceVersion", found["metadata"]["resourceVersion"])
                != (found["metadata"]["resourceVersion"])
            ):
                return status(409, "the object has been modified")
            self.put(path, _merged(found, body))
        return 200, self.objects[path]


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _handler(api: ApiStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(content) if content else None
            kind = self.headers.get("Content-Type") or ""
            asked = Asked(self.command, self.path, body, kind)
            if "watch=1" in self.path:
                self._stream(asked)
                return
            code, answer = api.answer(asked)
            if code == 0:  # no response
                self.close_connection = True
                return
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _stream(self, asked: Asked) -> None:
            api.asked.append(asked)
            self.close_connection = True
            self.send_response(200)
            self.end_headers()
            for event in api.watch(asked):
                self.wfile.write(json.dumps(event).encode() + b"\n")

        do_GET = do_POST = do_PATCH = _serve

        def log_message(self, *_: object) -> None:
            """Keep the tests' output quiet."""

    return Handler
