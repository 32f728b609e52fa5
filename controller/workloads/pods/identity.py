# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Properties of a pod from its labels and owner: service name, core group, evictability."""

import re

from controller.workloads.pods.pod import Owner, Pod

__all__ = ("APP_LABELS", "controller_of", "core_group", "evictable", "service_name")

APP_LABELS = ("app.kubernetes.io/name", "app", "k8s-app")
_GROUP_KEYS = ("koordinator.sh/core-sched-group-id", "koordinator.sh/coreSchedulingGroup")
_GROUP_POLICY = "koordinator.sh/core-sched-policy"
# As in the configuration (controller.config.sections.knobs).
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def controller_of(pod: Pod) -> Owner | None:
    """Return the controller of *pod*: its owner, or the Deployment of the owning ReplicaSet.

    The name of a Deployment's ReplicaSet is that of the Deployment and a hash, which changes with
    every roll-out.
    """
    owner = pod.owner
    hashed = pod.labels.get("pod-template-hash")
    if owner is None or owner.kind != "ReplicaSet" or not hashed:
        return owner
    name = owner.name.removesuffix(f"-{hashed}")
    return owner if name == owner.name else Owner(kind="Deployment", name=name)


def service_name(pod: Pod) -> str:
    """Return ``namespace/owner`` of *pod*; without an owner its app label, or its own name."""
    owner = controller_of(pod)
    if owner is not None:
        return f"{pod.namespace}/{owner.name}"
    labels = (pod.labels.get(key, "") for key in APP_LABELS)
    return f"{pod.namespace}/{next(filter(_WORD.fullmatch, labels), pod.name)}"


def core_group(pod: Pod) -> tuple[str, str | None]:
    """Return the core group of *pod* and the problem with its label, if any.

    Only pods of one group share a core. Empty: the group of all best-effort work. With the policy
    ``exclusive`` a pod is a group of its own. The name of another group includes the namespace, or
    a pod could join a group of another namespace.
    """
    if pod.labels.get(_GROUP_POLICY) == "exclusive":
        return pod.uid, None
    for key in _GROUP_KEYS:
        group = pod.labels.get(key) or pod.annotations.get(key)
        if group:
            if _WORD.fullmatch(group):
                return f"{pod.namespace}/{group}", None
            return "", f"{key}={group[:64]!r} is not a name"
    return "", None


def evictable(pod: Pod) -> bool:
    """Return whether an eviction moves *pod* to another node or ends it for good.

    Pods of a DaemonSet and static pods would be started here again.
    """
    owner = pod.owner
    bound = owner is not None and owner.kind in ("DaemonSet", "Node")
    return not (bound or pod.mirror or pod.terminating or pod.finished)
