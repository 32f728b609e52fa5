# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The annotation of the Node that pauses its agent, read by the worker's thread.

The Node is read by name, so that the agent needs no right to list nodes, and from the server's
cache (``resourceVersion=0``), which is as much load as a kubelet's own.
"""

from controller.kube.client.api import Api, segment
from controller.kube.client.errors import ApiError, ApiInvalidResponse
from controller.kube.client.worker import Worker
from controller.kube.node import annotation, mapping

__all__ = ("PAUSE_KEY", "NodePause")

PAUSE_KEY = "sweetpoint.dev/pause"
_EVERY_S = 10.0
# More than any valid text has; what is cut off is not kept.
_MAX_CHARS = 256


class NodePause:
    """Reads the annotation every ten seconds.

    ``text``, which any thread may read, is that of the last answer: empty without the annotation,
    ``None`` before the first answer. While the API server is away it stays. ``missing``: by
    the last answer there is no such Node.
    """

    def __init__(self, api: Api, worker: Worker, node: str) -> None:
        self._api = api
        self._node = node
        self._path = f"/api/v1/nodes/{segment(node)}"
        self.text: str | None = None
        self.missing = False
        worker.submit_periodic(_EVERY_S, self._read, "pause of the node")

    def _read(self) -> None:
        try:
            node = self._api.get(self._path, {"resourceVersion": "0"})
        except ApiError as error:
            if error.status != 404:
                raise
            self.text = ""  # a node that does not exist has no annotation
            self.missing = True
            return
        if mapping(node, "metadata").get("name") != self._node:
            raise ApiInvalidResponse("not the node that was asked for")  # a proxy may answer
        self.missing = False
        self.text = (annotation(node, PAUSE_KEY) or "")[:_MAX_CHARS]
