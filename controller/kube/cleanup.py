# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where the node's mark and capacity can be taken back by who was not there when they were put.

The note lies beside the journal as long as they may be there: ``sweetpoint release`` has no
configuration, and the agent may be gone.

Stop every agent of a DaemonSet, before what the agents need to clean up is taken away.

Whoever deletes a release deletes the agents' rights in the same moment, and an agent without them
cannot take its node's mark back. So its pods go first: no node fits the DaemonSet any more, each
agent gets its SIGTERM, puts back what it changed and ends.
"""

from collections.abc import Callable
import json
import logging
from pathlib import Path
import time
from typing import Any

from controller.host.state_dir import write_json
from controller.kube.client.api import Api, PatchKind, segment
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.extended_resources import remove_resources
from controller.kube.overload_taint import remove_taint

__all__ = (
    "NOWHERE",
    "RetireError",
    "remove_overload_taint",
    "remove_taint_note",
    "retire",
    "write_taint_note",
)

_NAME = "node-mark.json"


def write_taint_note(state_dir: Path, node: str, kubeconfig: Path | None) -> None:
    """Write down which node may be marked and how to reach its API server.

    :raises OSError: it cannot be written.
    """
    where = None if kubeconfig is None else str(kubeconfig)
    write_json(state_dir / _NAME, {"node": node, "kubeconfig": where})


def remove_taint_note(state_dir: Path) -> None:
    """Remove the note: there is no mark."""
    (state_dir / _NAME).unlink(missing_ok=True)


def remove_overload_taint(state_dir: Path) -> tuple[bool, str]:
    """Take back what the note tells of; whether nothing is there now, and one line about it.

    The line is empty if there is no note.
    """
    try:
        note = json.loads((state_dir / _NAME).read_text(encoding="utf-8"))
        node, where = str(note["node"]), note["kubeconfig"]
        kubeconfig = None if where is None else Path(where)
    except FileNotFoundError:
        return True, ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return False, f"{state_dir / _NAME}: {error}"
    try:
        api = Api(kubeconfig)
        found = remove_taint(api, node)
    except (ApiError, ApiUnreachable, ValueError) as error:
        return False, f"node {node}: the mark may still be there: {error}"
    text = f"node {node}: the mark is {'taken back' if found else 'not there'}"
    try:
        offered = remove_resources(api, node)
    except (ApiError, ApiUnreachable) as error:
        return False, f"{text}; reclaimable capacity may still be there: {error}"
    remove_taint_note(state_dir)
    return True, f"{text}; reclaimable capacity is taken off" if offered else text


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
