# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server lets this agent do, asked before it is needed.

Lists and watches show a missing permission by themselves. Evictions, taints, capacity and Events
are rare, so the server is asked about them (SelfSubjectAccessReview, which the role
system:basic-user permits to everyone).
"""

from collections.abc import Callable, Iterator, Mapping
import time
from typing import Any, NamedTuple

from controller.config.sections.kubernetes import KubernetesConfig
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError
from controller.kube.client.worker import Worker

__all__ = ("Need", "Permissions", "needs")

# Up to four small requests of each node, which do not reach etcd. What is missing may be granted at
# any time.
_EVERY_S = 600.0
_MISSING_EVERY_S = 30.0
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
    """Asks every ten minutes, and every 30 s while something is missing.

    ``missing`` are the refused needs, which any thread may read. A server that cannot be asked
    refuses nothing.

    :param clock: seconds of CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        api: Api,
        worker: Worker,
        wanted: Iterator[Need],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._wanted = tuple(wanted)
        self._clock = clock
        self._due_s = clock()
        self.missing: Mapping[str, str] = {}
        if self._wanted:
            worker.submit_periodic(_MISSING_EVERY_S, self.ask, "own permissions")

    def ask(self) -> None:
        """Ask if something was missing, or ten minutes after the last time."""
        if not self.missing and self._clock() < self._due_s:
            return
        answers = {str(need): self._is_refused(need) for need in self._wanted}
        self.missing = {name: "not granted" for name, refused in answers.items() if refused}
        self._due_s = self._clock() + _EVERY_S

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
