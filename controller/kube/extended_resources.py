# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Extended resources of a node, as the scheduler reads them: nodes/status, and a time stamp.

What we publish is claimed in an annotation, in the same patch, with when it was written and how
long it is good for. A resource on the node that is not claimed there, or has another value than
the claim says, is somebody else's and is left alone. Kubelet keeps resources that it does not
know and copies them from capacity to allocatable; after a reboot it may set them to 0
(pkg/kubelet/kubelet_node_status.go, reconcileExtendedResource).
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
_LONGEST_STAMP = 4096

Amounts = Mapping[str, int]


class NodeResources:
    """Publishes for one node; for the worker's thread alone, but for ``foreign``.

    ``foreign`` are the names that somebody else has on this node; looked at with every ``publish``.

    :param clock: seconds since the epoch; the time stamp is for others to read.
    """

    def __init__(self, api: Api, node: str, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._node = node
        self._clock = clock
        self.foreign: frozenset[str] = frozenset()

    def publish(self, amounts: Amounts, valid_s: float) -> None:
        """Make *amounts*, by resource name, those of the node, good for *valid_s* seconds.

        What an earlier run published under other names is taken off.

        :raises ApiError: the server does not let us.
        :raises ApiUnreachable: it did not answer; the amounts may be there.
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
    """Remove what any run published on *node*; whether there was something.

    Not set to 0: kubelet turns running pods away at its restart if a resource that they asked for
    is there with too little of it, and overlooks one that is not there (pkg/kubelet/lifecycle,
    removeMissingExtendedResources).

    :raises ApiError: the server does not let us.
    :raises ApiUnreachable: it did not answer.
    """

    def patch(found: Json) -> Json | None:
        if annotation(found, STAMP) is None:
            return None
        return _patch(_removed(_claimed(found), _capacity(found), {}), None)

    return change_node(api, node, patch, subresource="status")


def _patch(amounts: Mapping[str, str | None], stamp: str | None) -> Json:
    return {
        "metadata": {"annotations": {STAMP: stamp}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _removed(
    claimed: Mapping[str, str], capacity: Mapping[str, str], kept: Amounts
) -> dict[str, str | None]:
    """Return the removal of what is claimed, still as we wrote it, and not *kept*."""
    return {
        name: None
        for name, amount in claimed.items()
        if name not in kept and capacity.get(name) in ("0", amount)
    }


def _claimed(node: Json) -> dict[str, str]:
    text = annotation(node, STAMP) or ""
    try:
        stamp = json.loads(text) if len(text) <= _LONGEST_STAMP else None
    except (ValueError, RecursionError):
        return {}
    resources = stamp.get("resources") if isinstance(stamp, dict) else None
    if not isinstance(resources, dict):
        return {}
    # Nobody makes us take off cpu or memory by writing them into our annotation.
    return {n: a for n, a in resources.items() if "/" in n and isinstance(a, str)}


def _capacity(node: Json) -> dict[str, str]:
    return mapping(node, "status", "capacity")


def _quantity(amount: int) -> str:
    """Return *amount* as the API server writes it, so that it can be compared."""
    units = iter("kMGTPE")
    unit = ""
    while amount and amount % 1000 == 0:
        amount //= 1000
        unit = next(units)
    return f"{amount}{unit}"
