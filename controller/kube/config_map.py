# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One ConfigMap, followed: each of its states is passed on, by a thread of its own."""

from collections.abc import Callable, Mapping
from typing import Any

from controller.kube.api import Api, segment
from controller.kube.collection import CollectionWatch

__all__ = ("ConfigMapWatch",)


class ConfigMapWatch(CollectionWatch[Mapping[str, Any]]):
    """Follows the ConfigMap *name* in *namespace* until closed.

    It lists and watches by ``metadata.name``, which the API server takes for the object's name
    when it decides who may (RequestInfoFactory in k8s.io/apiserver), so a Role with
    ``resourceNames`` is enough. The version of an old object cannot be watched from; that of a
    list can.

    :param take: called in the thread with the object whenever it is another one than before, with
        ``None`` when there is none.
    :raises ValueError: there cannot be such a ConfigMap.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        take: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        super().__init__(
            api,
            f"ConfigMap {namespace}/{name}",
            f"/api/v1/namespaces/{segment(namespace)}/configmaps",
            {"fieldSelector": f"metadata.name={segment(name)}"},
            read=lambda raw: raw,
            take=lambda objects: take(next(iter(objects.values()), None)),
        )
