# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Removal of what the agent left in the cluster: on one node, and before an uninstallation.

On one node: ``sweetpoint release`` has no configuration, and the agent may not run any more.
Therefore a note beside the journal names the node and its API server as long as the node may have
the overload taint or reclaimable capacity.

Before an uninstallation: deleting a release deletes the agents' permissions too, and an agent
without them cannot remove the taint of its node. ``retire`` therefore changes the DaemonSet's node
selector so that no node matches. Each agent gets SIGTERM, restores what it changed, and ends. It
does not wait for nodes that are not Ready, whose kubelet ends no pod. Then it removes what is left
on Node objects: an agent that ends has only seconds to reach the API server, and no agent follows.

What is cleaned up may be gone already, in whole or in part, and does not prevent the rest: without
the DaemonSet the pods that it left are waited for, and a node that fails is reported at the end.
"""

from collections.abc import Callable
import json
import logging
import math
from pathlib import Path
import time

from controller.host.state_dir import read_file, write_json
from controller.kube.client.api import Api, PatchKind, segment
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.extended_resources import STAMP, remove_resources
from controller.kube.node import Json, annotation, taints
from controller.kube.overload_taint import TAINT_KEY, remove_taint

__all__ = (
    "NOWHERE",
    "RetireError",
    "remove_overload_taint",
    "remove_taint_note",
    "retire",
    "write_taint_note",
)

_log = logging.getLogger(__name__)

_NOTE_NAME = "node-mark.json"
_POLL_S = 1.0
# Of pods that may be left on nodes that are not Ready. More of them are an outage.
_LOOK_EVERY_S, _MOST_AWAY = 10.0, 200
# Of a server that has just started and has not read the roles yet, for at most so long.
_FORBIDDEN, _SETTLE_S = 403, 30.0
# No node has this label.
NOWHERE = "sweetpoint.dev/retired"
_PATCH = {"spec": {"template": {"spec": {"nodeSelector": {NOWHERE: "true"}}}}}
# The chart gives it to all agents; what distinguishes releases is gone with the DaemonSet.
_LABELS = {"app.kubernetes.io/name": "sweetpoint"}


def write_taint_note(state_dir: Path, node: str, kubeconfig: Path | None) -> None:
    """Write the note: the node that may have the taint, and how to reach its API server.

    :raises OSError: the note cannot be written.
    """
    path = None if kubeconfig is None else str(kubeconfig)
    write_json(state_dir / _NOTE_NAME, {"node": node, "kubeconfig": path})


def remove_taint_note(state_dir: Path) -> None:
    """Remove the note: the node has neither the taint nor reclaimable capacity.

    A note that cannot be removed is reported in the log; the next removal finds no taint.
    """
    try:
        (state_dir / _NOTE_NAME).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot remove %s: %s", state_dir / _NOTE_NAME, error.strerror)


def remove_overload_taint(state_dir: Path) -> tuple[bool, str]:
    """Remove the taint and the reclaimable capacity of the node that the note names.

    :returns: whether the node is clean now, and one line about it, empty if there is no note.
    """
    try:
        note = json.loads(read_file(state_dir / _NOTE_NAME))
        node, path = str(note["node"]), note["kubeconfig"]
        kubeconfig = None if path is None else Path(path)
    except FileNotFoundError:
        return True, ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return False, f"{state_dir / _NOTE_NAME}: {error}"
    try:
        api = Api(kubeconfig)
        found = remove_taint(api, node)
    except (ApiError, ApiUnreachable, ValueError) as error:
        return False, f"node {node}: the overload taint may still be present: {error}"
    text = f"node {node}: the overload taint {'was removed' if found else 'is not present'}"
    try:
        offered = remove_resources(api, node)
    except (ApiError, ApiUnreachable) as error:
        return False, f"{text}; reclaimable capacity may still be present: {error}"
    remove_taint_note(state_dir)
    return True, f"{text}; reclaimable capacity was removed" if offered else text


class RetireError(Exception):
    """Agents still run, or nodes could not be cleaned up; the message names them."""


def retire(
    api: Api,
    namespace: str,
    name: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Make the pods of the DaemonSet end, wait until they have, and clean up all Node objects.

    It does not wait for pods on nodes that are not Ready; a warning names these nodes. Their pods
    end, and restore the knobs, when kubelet is back. Without the DaemonSet it waits for its pods.
    If the server does not answer after it has answered once, or refuses what it did not refuse,
    everything is tried again: what was done stays done.

    :raises ApiError: the server refused a request.
    :raises ApiUnreachable: the server never answered, or not after *timeout_s* seconds.
    :raises RetireError: pods remain on nodes that are Ready after *timeout_s* seconds, or a node
        could not be cleaned up.
    """
    deadline_s = clock() + timeout_s
    path = f"/apis/apps/v1/namespaces/{segment(namespace)}/daemonsets/{segment(name)}"
    _found(lambda: api.get(path))  # fails at once with wrong credentials or a wrong address
    refused_s: float | None = None
    while True:
        try:
            _end_agents(api, namespace, name, timeout_s, deadline_s, clock)
            _clean_nodes(api)
        except (ApiError, ApiUnreachable) as error:
            if isinstance(error, ApiUnreachable):
                refused_s = None
            elif error.status != _FORBIDDEN:
                raise
            elif refused_s is None:
                refused_s = clock()
            settled_s = math.inf if refused_s is None else refused_s + _SETTLE_S
            if clock() >= min(deadline_s, settled_s):
                raise
            _log.warning("the API server does not answer as before: %s; trying again", error)
            time.sleep(_POLL_S)
        else:
            return


def _end_agents(
    api: Api,
    namespace: str,
    name: str,
    timeout_s: float,
    deadline_s: float,
    clock: Callable[[], float],
) -> None:
    path = f"/apis/apps/v1/namespaces/{segment(namespace)}/daemonsets/{segment(name)}"
    daemon_set = _found(lambda: api.patch(path, _PATCH, kind=PatchKind.MERGE))
    if daemon_set is None:
        _log.warning("there is no DaemonSet %s/%s: waiting for pods that it left", namespace, name)
    look_s = min(clock() + _LOOK_EVERY_S, deadline_s)
    while running := _running(api, namespace, name, daemon_set):
        if clock() >= look_s:
            look_s = min(clock() + _LOOK_EVERY_S, deadline_s)
            if away := _nodes_away(api, namespace, name, daemon_set):
                for node in away:
                    _log.warning(
                        "node %s: not Ready; its agent ends when kubelet answers again: check the "
                        "taint and the capacity of this node then",
                        node,
                    )
                return
        if clock() >= deadline_s:
            hint = "" if daemon_set else "; their DaemonSet is gone: delete their pods"
            raise RetireError(f"{running} agents still run after {timeout_s:.0f}s{hint}")
        _log.info("%d agents still run", running)
        time.sleep(_POLL_S)
        daemon_set = _found(lambda: api.get(path))


def _found(request: Callable[[], Json]) -> Json | None:
    """Return the answer of *request*, ``None`` if its object does not exist."""
    try:
        return request()
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _clean_nodes(api: Api) -> None:
    """Remove the taint and the reclaimable capacity from every node that has one of them."""
    marked: list[str] = []

    def look(node: Json) -> None:
        keys = {each.get("key") for each in taints(node)}
        if TAINT_KEY in keys or any(annotation(node, key) for key in (TAINT_KEY, STAMP)):
            marked.append(str(node["metadata"]["name"]))

    api.items("/api/v1/nodes", {}, look)
    failed = []
    for node in marked:
        try:
            remove_taint(api, node)
            remove_resources(api, node)
        except ApiError as error:
            _log.error("node %s: taint or reclaimable capacity may be left: %s", node, error)
            failed.append(node)
        else:
            _log.info("node %s: removed what its agent left: taint or reclaimable capacity", node)
    if failed:
        raise RetireError(f"{len(failed)} nodes are not cleaned up, {failed[0]} among them")


def _running(api: Api, namespace: str, name: str, daemon_set: Json | None) -> int:
    """Return the number of agents, at least 1 until the controller saw the change.

    The controller does not count pods that are ending, which still clean up with the permissions
    of the release. So where it counts none they are listed.
    """
    pods = 0
    if daemon_set is not None:
        status = daemon_set.get("status") or {}
        pods = int(status.get("currentNumberScheduled", 0))
        pods += int(status.get("numberMisscheduled", 0))
        if not _is_seen(daemon_set):
            return max(pods, 1)
    return pods or len(_agents(api, namespace, name, daemon_set))


def _is_seen(daemon_set: Json | None) -> bool:
    if daemon_set is None:
        return True
    status = daemon_set.get("status") or {}
    return bool(status.get("observedGeneration") == daemon_set["metadata"]["generation"])


def _nodes_away(api: Api, namespace: str, name: str, daemon_set: Json | None) -> list[str]:
    """Return the nodes of the remaining pods if none of these nodes is Ready, else nothing."""
    if not _is_seen(daemon_set):
        return []
    pods = _agents(api, namespace, name, daemon_set)
    nodes = sorted({each["spec"].get("nodeName", "") for each in pods} - {""})
    if len(nodes) > _MOST_AWAY or any(_is_ready(api, node) for node in nodes):
        return []
    return nodes


def _agents(api: Api, namespace: str, name: str, daemon_set: Json | None) -> list[Json]:
    """Return the pods of agents that have not ended, one more than ``_MOST_AWAY`` at most."""
    labels = _LABELS if daemon_set is None else daemon_set["spec"]["selector"]["matchLabels"]
    query = {
        "labelSelector": ",".join(f"{key}={value}" for key, value in labels.items()),
        "limit": str(_MOST_AWAY + 1),
    }
    pods = api.get(f"/api/v1/namespaces/{segment(namespace)}/pods", query)["items"]
    ended = ("Succeeded", "Failed")
    return [
        each
        for each in pods
        if (each.get("status") or {}).get("phase") not in ended and not _is_of_another(each, name)
    ]


def _is_of_another(pod: Json, name: str) -> bool:
    """Return whether *pod* belongs to another DaemonSet than *name*: to another release."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(each["kind"] == "DaemonSet" and each["name"] != name for each in owners)


def _is_ready(api: Api, node: str) -> bool:
    found = _found(lambda: api.get(f"/api/v1/nodes/{segment(node)}")) or {}
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
