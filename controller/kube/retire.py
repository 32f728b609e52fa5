# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Stop every agent of a DaemonSet, before what the agents need to clean up is taken away.

Whoever deletes a release deletes the agents' rights in the same moment, and an agent without them
cannot take its node's mark back. So its pods go first: no node fits the DaemonSet any more, each
agent gets its SIGTERM, puts back what it changed and ends.
"""

from collections.abc import Callable
import logging
import time
from typing import Any

from controller.kube.api import Api, PatchKind, segment

__all__ = ("NOWHERE", "RetireError", "retire")

_log = logging.getLogger(__name__)

_LOOK_S = 1.0
# No node has this label.
NOWHERE = "sweetpoint.dev/retired"
_PATCH = {"spec": {"template": {"spec": {"nodeSelector": {NOWHERE: "true"}}}}}


class RetireError(Exception):
    """Agents still run; the message says how many."""


def retire(
    api: Api,
    namespace: str,
    name: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Make the DaemonSet's pods go and wait until they are gone.

    :raises ApiError: the server does not let us.
    :raises ApiUnreachable: it did not answer.
    :raises RetireError: pods are left after *timeout_s* seconds.
    """
    path = f"/apis/apps/v1/namespaces/{segment(namespace)}/daemonsets/{segment(name)}"
    deadline_s = clock() + timeout_s
    found = api.patch(path, _PATCH, kind=PatchKind.MERGE)
    while left := _left(found):
        if clock() >= deadline_s:
            raise RetireError(f"{left} agents still run after {timeout_s:.0f}s")
        _log.info("%d agents still run", left)
        time.sleep(_LOOK_S)
        found = api.get(path)


def _left(daemon_set: dict[str, Any]) -> int:
    """Return how many nodes have a pod; at least 1 while the controller has not looked."""
    status = daemon_set.get("status") or {}
    left = int(status.get("currentNumberScheduled", 0)) + int(status.get("numberMisscheduled", 0))
    seen = status.get("observedGeneration") == daemon_set["metadata"]["generation"]
    return left if seen else max(left, 1)
