# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent takes from its own Node: labels, and the annotation that pauses the agent.

The worker's thread reads it. The Node is read by name, so that the agent needs no right to list
nodes, and from the server's cache (``resourceVersion=0``), which is as much load as a kubelet's
own.
"""

from collections.abc import Mapping
import re

from controller.config.label_selector import LABEL_KEY, LABEL_VALUE
from controller.kube.client.api import Api, segment
from controller.kube.client.errors import ApiError, ApiInvalidResponse
from controller.kube.client.worker import Worker
from controller.kube.node import Json, annotation, mapping

__all__ = ("PAUSE_KEY", "OwnNode")

PAUSE_KEY = "sweetpoint.dev/pause"
_EVERY_S = 10.0
# More than any valid text has; what is cut off is not kept.
_MAX_CHARS = 256
# A Node has about 30.
_MAX_LABELS = 1024
_KEY, _VALUE = re.compile(LABEL_KEY), re.compile(LABEL_VALUE)


class OwnNode:
    """Reads the Node every ten seconds.

    ``pause``, which any thread may read, is the annotation of the last answer: empty without it,
    ``None`` before the first answer. ``labels`` are those of the last answer with a Node, ``None``
    before it; the same object as long as they are equal. While the API server is away both stay.
    ``missing``: by the last answer there is no such Node.
    """

    def __init__(self, api: Api, worker: Worker, node: str) -> None:
        self._api = api
        self._node = node
        self._path = f"/api/v1/nodes/{segment(node)}"
        self.pause: str | None = None
        self.labels: Mapping[str, str] | None = None
        self.missing = False
        worker.submit_periodic(_EVERY_S, self._read, "pause of the node")

    def _read(self) -> None:
        try:
            node = self._api.get(self._path, {"resourceVersion": "0"})
        except ApiError as error:
            if error.status != 404:
                raise
            self.pause = ""  # a node that does not exist has no annotation
            self.missing = True
            return
        if mapping(node, "metadata").get("name") != self._node:
            raise ApiInvalidResponse("not the node that was asked for")  # a proxy may answer
        self.missing = False
        labels = _labels(node)
        if labels != self.labels:
            self.labels = labels
        self.pause = (annotation(node, PAUSE_KEY) or "")[:_MAX_CHARS]


def _labels(node: Json) -> Mapping[str, str]:
    """Return the labels of *node*. What the API server would not accept is none."""
    found = {}
    for key, value in mapping(node, "metadata", "labels").items():
        if isinstance(value, str) and _KEY.fullmatch(key) and _VALUE.fullmatch(value):
            found[key] = value
            if len(found) == _MAX_LABELS:
                break
    return found
