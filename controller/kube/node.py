# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Node object, which kubelet, the autoscaler and people change as well.

Every change of ours says which version of the node it was made from; if there is a newer one it is
made anew. What the server says is looked at before it is believed: a proxy may answer in its place.
"""

from collections.abc import Callable
import time
from typing import Any

from controller.kube.client.api import Api, PatchKind, segment
from controller.kube.client.errors import ApiError, ApiInvalidResponse

__all__ = ("Json", "annotation", "change_node", "mapping", "taints")

Json = dict[str, Any]

# Somebody else changed the node between our look and our change; the pause grows with each try.
_TRIES = 8
_PAUSE_S = 0.02


def change_node(
    api: Api, node: str, make: Callable[[Json], Json | None], *, subresource: str = ""
) -> bool:
    """Merge what *make* returns for the node as it is into it; whether that took a change.

    A node that is gone takes none.

    :param make: returns ``None`` if the node is as it should be; called again after a conflict.
    :param subresource: ``status``, where that is what has to change.
    :raises ApiError: the server does not let us.
    :raises ApiUnreachable: it did not answer, or not with a node; the change may be made.
    """
    path = f"/api/v1/nodes/{segment(node)}"
    for tried in range(_TRIES):
        time.sleep(tried * _PAUSE_S)
        try:
            found = api.get(path)
            version = mapping(found, "metadata").get("resourceVersion")
            if not isinstance(version, str):
                raise ApiInvalidResponse("a node without a version")
            patch = make(found)
            if patch is not None:
                patch.setdefault("metadata", {})["resourceVersion"] = version
                below = f"{path}/{subresource}" if subresource else path
                api.patch(below, patch, kind=PatchKind.MERGE)
        except ApiError as error:
            if error.status == 404:
                return False
            if error.status != 409 or tried == _TRIES - 1:
                raise
        else:
            return patch is not None
    raise AssertionError("the last try returns or raises")


def mapping(found: Json, *path: str) -> Json:
    """Return the mapping at *path*, empty if there is none.

    :raises ApiInvalidResponse: there is something else.
    """
    for key in path:
        found = found.get(key) or {}
        if not isinstance(found, dict):
            raise ApiInvalidResponse(f"a node whose {key} is no mapping")
    return found


def annotation(node: Json, key: str) -> str | None:
    """Return an annotation, ``None`` if there is none.

    :raises ApiInvalidResponse: it is not text.
    """
    text = mapping(node, "metadata", "annotations").get(key)
    if text is not None and not isinstance(text, str):
        raise ApiInvalidResponse("a node with an annotation that is not text")
    return text


def taints(node: Json) -> list[Json]:
    """Return the taints.

    :raises ApiInvalidResponse: there is something else.
    """
    found = mapping(node, "spec").get("taints") or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ApiInvalidResponse("a node whose taints are no list of mappings")
    return found
