# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent takes from its own Node: labels, and the annotation that pauses the agent.

A thread watches this one Node, as its kubelet does. The API server finds the watchers of a Node by
its name, and a Node that does not change costs one request in minutes.
"""

from collections.abc import Mapping
import re
from typing import Any, NamedTuple

from controller.config.label_selector import LABEL_KEY, LABEL_VALUE
from controller.kube.client.api import Api, segment
from controller.kube.client.errors import ApiInvalidResponse
from controller.kube.client.watch import CollectionWatch
from controller.kube.node import annotation, mapping

__all__ = ("PAUSE_KEY", "OwnNode")

PAUSE_KEY = "sweetpoint.dev/pause"
# More than any valid text has; what is cut off is not kept.
_MAX_CHARS = 256
# A Node has about 30.
_MAX_LABELS = 1024
_KEY, _VALUE = re.compile(LABEL_KEY), re.compile(LABEL_VALUE)


class _Seen(NamedTuple):
    """What is kept of the Node."""

    pause: str
    labels: Mapping[str, str]


class OwnNode(CollectionWatch[_Seen]):
    """Keeps what the Node *node* has until closed.

    ``pause``, which any thread may read, is the annotation of the Node as it was seen last: empty
    without it, ``None`` before the first answer. ``labels`` are those of the last Node, ``None``
    before it; the same object as long as they are equal. While the API server is away both stay.
    ``missing``: there is no such Node.
    """

    def __init__(self, api: Api, node: str) -> None:
        self._node = node
        self.pause: str | None = None
        self.labels: Mapping[str, str] | None = None
        self.missing = False
        super().__init__(
            api,
            f"Node {node}",
            "/api/v1/nodes",
            # "0": the state in the server's memory, not one read of etcd per agent.
            {"fieldSelector": f"metadata.name={segment(node)}", "resourceVersion": "0"},
            parse=self._parse_node,
            publish=self._take,
        )

    def _parse_node(self, raw: Mapping[str, Any]) -> _Seen:
        node = dict(raw)
        if mapping(node, "metadata").get("name") != self._node:
            raise ApiInvalidResponse("not the node that was asked for")  # a proxy may answer
        return _Seen((annotation(node, PAUSE_KEY) or "")[:_MAX_CHARS], _labels(node))

    def _take(self, found: Mapping[str, _Seen]) -> None:
        seen = next(iter(found.values()), None)
        if seen is None:
            self.pause = ""  # a node that does not exist has no annotation
        else:
            if seen.labels != self.labels:
                self.labels = seen.labels
            self.pause = seen.pause
        self.missing = seen is None


def _labels(node: dict[str, Any]) -> Mapping[str, str]:
    """Return the labels of *node*. What the API server would not accept is none."""
    found = {}
    for key, value in mapping(node, "metadata", "labels").items():
        if isinstance(value, str) and _KEY.fullmatch(key) and _VALUE.fullmatch(value):
            found[key] = value
            if len(found) == _MAX_LABELS:
                break
    return found
