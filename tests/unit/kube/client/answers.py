# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Answers of an API server as bytes, and watches of a client."""

from collections.abc import Callable
import json
import threading
from typing import Any

from controller.kube.client.api import Api, Limits
from controller.kube.client.errors import ApiUnreachable

SECRET = "s3cr3t-t0k3n"
# For servers that do not answer.
SHORT = Limits(answer_s=0.1, list_s=0.1, silence_s=0.1)
STATUS = {
    "kind": "Status",
    "message": "Cannot evict pod as it would\nviolate the pod's disruption budget.",
    "reason": "TooManyRequests",
    "details": {
        "causes": [{"reason": "DisruptionBudget", "message": "..."}],
        "retryAfterSeconds": 10,
    },
    "code": 429,
}


Connect = Callable[..., Api]


def chunk(event: dict[str, Any]) -> bytes:
    """Return an event of a watch as the API server sends it: one chunk with one line."""
    text = json.dumps(event).encode() + b"\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


def abort_watch(api: Api) -> list[str]:
    """Start a watch in another thread, abort it, and return the messages of its errors."""
    errors = []

    def ask() -> None:
        try:
            watch(api)
        except ApiUnreachable as error:
            errors.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        api.abort(thread)
        thread.join(0.01)
    api.abort(thread)
    return errors


def watch(api: Api) -> list[dict[str, Any]]:
    with api.watch("/api/v1/pods", {"resourceVersion": "5"}) as events:
        return list(events)
