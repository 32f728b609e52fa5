# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of the Node object, which kubelet, the autoscaler and people change too.

A patch names the version of the node that it was made from; after a conflict it is made again from
the newer version. Responses are validated, because a proxy may answer in place of the server.
"""

from collections.abc import Callable
import time
from typing import Any

from controller.kube.client.api import Api, PatchKind, segment
from controller.kube.client.errors import ApiError, ApiInvalidResponse

__all__ = ("Json", "annotation", "change_node", "mapping", "taints")

Json = dict[str, Any]

# A conflict means that the node changed between the GET and the PATCH; the pause grows with each.
_MAX_TRIES = 8
_PAUSE_S = 0.02


def change_node(
    api: Api, node: str, make_patch: Callable[[Json], Json | None], *, subresource: str = ""
) -> bool:
    """Apply a merge patch to a node; return whether there was anything to change.

    A node that does not exist is not changed.

    :param make_patch: returns the patch for the current node, ``None`` if none is necessary; called
        again after a conflict.
    :param subresource: ``status`` to change the status.
    :raises ApiError: the server refused a request, or there was a conflict eight times.
    :raises ApiUnreachable: the server did not answer, or not with a node; the change may be made.
    """
    path = f"/api/v1/nodes/{segment(node)}"
    for tried in range(_MAX_TRIES):
        time.sleep(tried * _PAUSE_S)
        try:
            found = api.get(path)
            version = mapping(found, "metadata").get("resourceVersion")
            if not isinstance(version, str):
                raise ApiInvalidResponse("a node without a version")
            patch = make_patch(found)
            if patch is not None:
                patch.setdefault("metadata", {})["resourceVersion"] = version
                target = f"{path}/{subresource}" if subresource else path
                api.patch(target, patch, kind=PatchKind.MERGE)
        except ApiError as error:
            if error.status == 404:
                return False
            if error.status != 409 or tried == _MAX_TRIES - 1:
                raise
        else:
            return patch is not None
    raise AssertionError("the last try returns or raises")


def mapping(found: Json, *path: str) -> Json:
    """Return the mapping at *path* of a node, empty if there is none.

    :raises ApiInvalidResponse: the value there is not a mapping.
    """
    for key in path:
        found = found.get(key) or {}
        if not isinstance(found, dict):
            raise ApiInvalidResponse(f"a node whose {key} is not a mapping")
    return found


def annotation(node: Json, key: str) -> str | None:
    """Return the annotation *key* of a node, ``None`` if there is none.

    :raises ApiInvalidResponse: the annotation is not text.
    """
    text = mapping(node, "metadata", "annotations").get(key)
    if text is not None and not isinstance(text, str):
        raise ApiInvalidResponse("a node with an annotation that is not text")
    return text


def taints(node: Json) -> list[Json]:
    """Return the taints of a node.

    :raises ApiInvalidResponse: the value there is not a list of mappings.
    """
    found = mapping(node, "spec").get("taints") or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ApiInvalidResponse("a node whose taints are not a list of mappings")
    return found
