# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Extended resources in the status of the Node object, which the scheduler reads.

An annotation, written in the same patch, claims the published resources with the time of writing
and a period of validity. A resource of the node that is not claimed there, or that has another
value than the claim, is foreign and not changed.

Kubelet keeps resources that it does not know and copies them from capacity to allocatable; after a
reboot it may set them to 0 (pkg/kubelet/kubelet_node_status.go, reconcileExtendedResource).
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
import json
import time

from controller.kube.client.api import Api
from controller.kube.node import Json, annotation, change_node, mapping

__all__ = ("STAMP", "NodeResources", "remove_resources")

# {"time": RFC 3339, "validSeconds": N, "resources": {NAME: QUANTITY}}
STAMP = "sweetpoint.dev/reclaimable"
_MAX_STAMP_LENGTH = 4096

Amounts = Mapping[str, int]


class NodeResources:
    """Publisher of the extended resources of one node; for the worker's thread.

    ``foreign`` are the names that are foreign on this node as of the last ``publish``; any thread
    may read it.

    :param clock: seconds since the epoch, for the time stamp in the annotation.
    """

    def __init__(self, api: Api, node: str, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._node = node
        self._clock = clock
        self.foreign: frozenset[str] = frozenset()

    def publish(self, amounts: Amounts, valid_s: float) -> None:
        """Set the node's resources to *amounts*, by resource name, valid for *valid_s* seconds.

        Resources that an earlier run published under other names are removed.

        :raises ApiError: the server refused a request.
        :raises ApiUnreachable: the server did not answer; the amounts may be published.
        """

        def patch(node: Json) -> Json:
            claimed, capacity = _claimed(node), _capacity(node)
            self.foreign = frozenset(
                name
                for name in amounts
                if name in capacity
                and not (name in claimed and capacity[name] in ("0", claimed[name]))
            )
            ours = {n: _quantity(a) for n, a in amounts.items() if n not in self.foreign}
            now = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds")
            stamp = {"time": now, "validSeconds": round(valid_s), "resources": ours}
            old = _removed(claimed, capacity, amounts)
            return _patch({**old, **ours}, json.dumps(stamp))

        change_node(self._api, self._node, patch, subresource="status")


def remove_resources(api: Api, node: str) -> bool:
    """Remove the resources that any run published on *node*; return whether there were any.

    They are removed rather than set to 0: when kubelet restarts, it rejects running pods that
    request more of a resource than there is, but ignores requests for resources that do not exist
    (pkg/kubelet/lifecycle, removeMissingExtendedResources).

    :raises ApiError: the server refused a request.
    :raises ApiUnreachable: the server did not answer.
    """

    def patch(current: Json) -> Json | None:
        if annotation(current, STAMP) is None:
            return None
        return _patch(_removed(_claimed(current), _capacity(current), {}), None)

    return change_node(api, node, patch, subresource="status")


def _patch(amounts: Mapping[str, str | None], stamp: str | None) -> Json:
    return {
        "metadata": {"annotations": {STAMP: stamp}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _removed(
    claimed: Mapping[str, str], capacity: Mapping[str, str], kept: Amounts
) -> dict[str, str | None]:
    """Return a patch that removes claimed resources with unchanged values, except *kept* ones."""
    return {
        name: None
        for name, amount in claimed.items()
        if name not in kept and capacity.get(name) in ("0", amount)
    }


def _claimed(node: Json) -> dict[str, str]:
    text = annotation(node, STAMP) or ""
    try:
        stamp = json.loads(text) if len(text) <= _MAX_STAMP_LENGTH else None
    except (ValueError, RecursionError):
        return {}
    resources = stamp.get("resources") if isinstance(stamp, dict) else None
    if not isinstance(resources, dict):
        return {}
    # Only names with a slash, so that a forged annotation cannot make the agent remove cpu or
    # memory.
    return {n: a for n, a in resources.items() if "/" in n and isinstance(a, str)}


def _capacity(node: Json) -> dict[str, str]:
    return mapping(node, "status", "capacity")


def _quantity(amount: int) -> str:
    """Return *amount* in the API server's canonical form, so that it can be compared."""
    units = iter("kMGTPE")
    unit = ""
    while amount and amount % 1000 == 0:
        amount //= 1000
        unit = next(units)
    return f"{amount}{unit}"
