# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""This node's pods as the API server has them, followed by a thread of its own."""

from collections.abc import Mapping
import logging
from types import MappingProxyType
from typing import Any

from controller.kube.client.api import Api
from controller.kube.client.rate_limit import Backoff, RateLimitedLogger
from controller.kube.client.watch import CollectionWatch
from controller.workloads.pods.pod import Pod, PodError, Pods, parse_pod
from controller.workloads.pods.untrusted_json import mapping

__all__ = ("PodWatcher",)

_log = logging.getLogger(__name__)


class PodWatcher(CollectionWatch[Pod | str]):
    """Keeps ``pods`` up to date until closed; any thread may read it without a lock.

    While the API server does not answer, what it said last stays. Of an object that makes no
    sense it keeps why that is.

    :param node: the name of this host's Node object.
    :param label_keys: labels to keep beside those that mean something to everybody.
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
        self._sparing = RateLimitedLogger(_log)
        self._objects: Mapping[str, Pod | str] = {}
        # And what they were made of.
        self._pods: tuple[Pods, Mapping[str, Pod | str]] = Pods(), self._objects
        super().__init__(
            api,
            "pods",
            "/api/v1/pods",
            # "0": whatever the server has in memory, rather than every node of the cluster
            # asking etcd for all pods after the server was started anew.
            {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"},
            read=self._read_pod,
            take=self._take_objects,
            backoff=backoff,
        )

    @property
    def pods(self) -> Pods:
        """What is known now; the same object as long as that is the same."""
        pods, made_of = self._pods
        objects = self._objects
        if objects is not made_of:
            # Here, for who asks: more happens to pods than anybody looks at them.
            pods = _joined(objects)
            self._pods = pods, objects
        return pods

    def _read_pod(self, raw: Mapping[str, Any]) -> Pod | str | None:
        node = mapping(raw, "spec").get("nodeName")
        if isinstance(node, str) and node != self._node:
            # Nobody asked for it. Whoever forgot what we asked for has the pods of all nodes.
            return None
        try:
            return parse_pod(raw, self._label_keys)
        except PodError as error:
            text = str(error)
            if self._known(raw) != text:
                self._sparing.warning(text)
            return text

    def _take_objects(self, objects: Mapping[str, Pod | str]) -> None:
        self._objects = objects


def _joined(objects: Mapping[str, Pod | str]) -> Pods:
    # Two objects may claim to be the same static pod. It does not matter which is taken: who
    # says that is `system`.
    pods = {each.uid: each for each in objects.values() if isinstance(each, Pod)}
    refused = sum(isinstance(each, str) for each in objects.values())
    return Pods(pods=MappingProxyType(pods), synced=True, refused=refused)
