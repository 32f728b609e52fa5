# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server lets this agent do, asked before it is needed.

Lists, watches and the read of the Node show a missing permission by themselves. Evictions, taints,
capacity and Events are rare, so the server is asked about them (SelfSubjectAccessReview, which the
role system:basic-user permits to everyone).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from controller.config.sections.kubernetes import KubernetesConfig
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError
from controller.kube.client.worker import Worker

__all__ = ("Need", "Permissions", "needs")

# Three small requests of each node; they do not reach etcd.
_EVERY_S = 600.0
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Need(NamedTuple):
    """A permission on all objects of a resource, in all namespaces."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        """Return the permission as in the server's own messages."""
        below = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{below}"


def needs(config: KubernetesConfig) -> Iterator[Need]:
    """Yield what *config* needs beside lists and reads; as in the chart's ClusterRole."""
    if config.events:
        yield Need("create", "events.k8s.io", "events")
    if config.eviction.enabled:
        yield Need("create", "", "pods", "eviction")
        yield Need("patch", "", "nodes")
    if config.capacity.enabled:
        yield Need("patch", "", "nodes", "status")


class Permissions:
    """Asks every ten minutes; ``missing`` are the refused needs, which any thread may read.

    A server that cannot be asked refuses nothing.
    """

    def __init__(self, api: Api, worker: Worker, wanted: Iterator[Need]) -> None:
        self._api = api
        self._wanted = tuple(wanted)
        self.missing: Mapping[str, str] = {}
        if self._wanted:
            worker.submit_periodic(_EVERY_S, self._ask, "own permissions")

    def _ask(self) -> None:
        answers = {str(need): self._is_refused(need) for need in self._wanted}
        self.missing = {name: "not granted" for name, refused in answers.items() if refused}

    def _is_refused(self, need: Need) -> bool:
        attributes = {key: value for key, value in need._asdict().items() if value}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            answer = self._api.create(_REVIEWS, review)
        except ApiError as error:
            if error.status in (403, 404):
                return False
            raise
        status: Any = answer.get("status")
        return isinstance(status, dict) and status.get("allowed") is False
