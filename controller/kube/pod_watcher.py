# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Watch of this node's pods at the API server, in a thread of its own."""

from collections.abc import Mapping
import logging
from types import MappingProxyType
from typing import Any

from controller.kube.client.api import Api
from controller.kube.client.rate_limit import Backoff, RateLimitedLogger
from controller.kube.client.watch import CollectionWatch
from controller.workloads.pods.pod import Pod, PodError, Pods, is_uuid, parse_pod
from controller.workloads.pods.untrusted_json import mapping

__all__ = ("PodWatcher",)

_log = logging.getLogger(__name__)


class PodWatcher(CollectionWatch[Pod | str]):
    """Keeps ``pods`` up to date until closed; any thread may read it without a lock.

    The last state is kept while the API server does not answer. An invalid object is kept as the
    reason why it is invalid.

    :param node: the name of this host's Node object.
    :param label_keys: keys of labels to keep in addition to the well-known ones.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        label_keys: frozenset[str] = frozenset(),
        backoff: Backoff | None = None,
    ) -> None:
        self._node = node
        self._label_keys = label_keys
        self._limited_log = RateLimitedLogger(_log)
        self._parsed: Mapping[str, Pod | str] = {}
        # Together with the mapping from which the pods were built.
        self._pods: tuple[Pods, Mapping[str, Pod | str]] = Pods(), self._parsed
        super().__init__(
            api,
            "pods",
            "/api/v1/pods",
            # "0": the state in the server's memory. Otherwise every node of the cluster would read
            # all pods from etcd after a restart of the server.
            {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"},
            parse=self._parse_pod,
            publish=self._publish_objects,
            backoff=backoff,
        )

    @property
    def pods(self) -> Pods:
        """The pods now; the same object as long as nothing has changed."""
        pods, source = self._pods
        parsed = self._parsed
        if parsed is not source:
            # Built on read, because pods change more often than they are read.
            pods = _join(parsed)
            self._pods = pods, parsed
        return pods

    def _parse_pod(self, raw: Mapping[str, Any]) -> Pod | str | None:
        node = mapping(raw, "spec").get("nodeName")
        if isinstance(node, str) and node != self._node:
            # A server that ignores the field selector would send the pods of all nodes.
            return None
        try:
            return parse_pod(raw, self._label_keys)
        except PodError as error:
            text = str(error)
            if self._previous(raw) != text:
                self._limited_log.warning(text)
            return text

    def _publish_objects(self, objects: Mapping[str, Pod | str]) -> None:
        self._parsed = objects


def _join(objects: Mapping[str, Pod | str]) -> Pods:
    pods: dict[str, Pod] = {}
    claims: dict[str, tuple[Pod, ...]] = {}
    for each in objects.values():
        if not isinstance(each, Pod):
            continue
        if each.mirror and is_uuid(each.uid):
            claims[each.uid] = (*claims.get(each.uid, ()), each)
        else:
            # Two objects may claim to be the same static pod. Either may be used: both are of the
            # class `system`.
            pods[each.uid] = each
    refused = sum(isinstance(each, str) for each in objects.values())
    return Pods(
        pods=MappingProxyType(pods),
        claims=MappingProxyType(claims),
        synced=True,
        refused=refused,
    )
