# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes:``: node, API access, trusted namespaces, cgroups of the pods."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
import os
from pathlib import Path
import re
import socket
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from controller.config.fields import Strict, Text, raw_default
from controller.config.sections.eviction import (
    KubeEvictionConfig,
    KubeEvictionModel,
    build_kube_eviction,
)
from controller.config.sections.kubernetes_capacity import (
    KubeCapacityConfig,
    KubeCapacityModel,
    build_kube_capacity,
)
from controller.config.sections.kubernetes_profiles import (
    AUTO,
    NAMESPACE,
    KubeProfilesConfig,
    KubeProfilesModel,
    build_kube_profiles,
    find_kube_profiles_conflicts,
)
from controller.config.yaml_document import Document, Loc

__all__ = (
    "AUTO",
    "IN_CLUSTER",
    "KubernetesConfig",
    "KubernetesModel",
    "ServiceProfiles",
    "build_kubernetes",
)

IN_CLUSTER = "in-cluster"
_MAX_ROOTS = 16

# A name of a node that the API server accepts (RFC 1123 subdomain).
_NODE = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_Namespaces = Annotated[list[Annotated[str, Field(pattern=NAMESPACE)]], Field(max_length=256)]


class ServiceProfiles(StrEnum):
    """The namespaces whose ServiceProfileDescriptors (Katalyst) set sweet points."""

    NONE = "none"
    TRUSTED = "trusted"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig:
    """The checked section.

    ``node`` is the name of this host's Node object. ``kubeconfig`` is ``None`` if the pod's own
    service account is used. ``cgroup_roots`` are the cgroups that contain this node's pods,
    below the mount of the cpu controller; ``None``: the agent searches them. ``events``: Events
    are sent. ``leave_to_others``:
    the agent does not write knobs that koordlet or katalyst-agent manages on this node.
    ``service_profiles`` selects the namespaces whose descriptors set sweet points.
    ``static_isolation``: best-effort work stays off CPUs that kubelet gave to one pod alone.
    """

    node: str
    kubeconfig: Path | None
    system_namespaces: tuple[str, ...]
    trusted_namespaces: tuple[str, ...]
    cgroup_roots: tuple[str, ...] | None
    eviction: KubeEvictionConfig
    events: bool = True
    leave_to_others: bool = True
    static_isolation: bool = True
    service_profiles: ServiceProfiles = ServiceProfiles.NONE
    profiles: KubeProfilesConfig = KubeProfilesConfig()  # noqa: RUF009 - frozen
    capacity: KubeCapacityConfig = KubeCapacityConfig()  # noqa: RUF009 - frozen


def _roots(value: object) -> object:
    if value == AUTO:
        return None
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_ROOTS:
        raise PydanticCustomError("roots", "must be auto, or a list of cgroups such as [/kubepods]")
    for path in value:
        parts = path.split("/")[1:] if isinstance(path, str) and path.startswith("/") else [""]
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise PydanticCustomError(
                "roots", "must be paths such as /kubepods below the hierarchy, without '..'"
            )
    return tuple(value)


_Roots = Annotated[
    Any,
    BeforeValidator(_roots),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": AUTO},
                {
                    "type": "array",
                    "items": {"type": "string", "pattern": "^/"},
                    "minItems": 1,
                    "maxItems": _MAX_ROOTS,
                },
            ]
        }
    ),
]


class KubernetesModel(Strict):
    """This host is a node of a Kubernetes cluster."""

    node: str = AUTO
    """Name of this host's Node object; auto takes NODE_NAME, without it the host's name."""
    kubeconfig: str = IN_CLUSTER
    """Absolute path of a kubeconfig file, or in-cluster for the pod's own service account."""
    system_namespaces: _Namespaces = raw_default(["kube-system"])
    """Namespaces whose pods have class system: measured and never changed."""
    trusted_namespaces: _Namespaces = raw_default([])
    """Namespaces whose pods may raise themselves by label above their Kubernetes QoS class."""
    cgroup_roots: _Roots = AUTO
    """Cgroups with this node's pods, below the cpu hierarchy; auto searches for kubepods."""
    eviction: KubeEvictionModel = raw_default({})
    """Whether and how often pods of this node may be evicted."""
    events: bool = True
    """Whether Events are sent; switch it off to spare the API server of a large cluster."""
    leave_to_others: bool = True
    """Whether knobs that koordlet or katalyst-agent manages on this node are left to them."""
    static_isolation: bool = True
    """Whether best-effort work stays off CPUs that kubelet's static CPU manager gave to one pod
    alone; cgroup v2 only."""
    service_profiles: Annotated[ServiceProfiles, Text] = ServiceProfiles.NONE
    """Namespaces whose Katalyst ServiceProfileDescriptors set sweet points: none, trusted or
    all."""
    profiles: KubeProfilesModel = raw_default({})
    """Profiles from a ConfigMap, and which pods get which profile."""
    capacity: KubeCapacityModel = raw_default({})
    """Unused resources of the node that are offered to best-effort pods."""


def build_kubernetes(
    document: Document, model: KubernetesModel | None, problems: list[str]
) -> KubernetesConfig | None:
    """Return the checked section, ``None`` without it; conflicts are added to *problems*."""
    if model is None:
        return None
    node = _own_node_name() if model.node == AUTO else model.node
    problems += [
        document.problem(("kubernetes", *at), text) for at, text in _find_conflicts(model, node)
    ]
    return KubernetesConfig(
        node=node,
        kubeconfig=None if model.kubeconfig == IN_CLUSTER else Path(model.kubeconfig),
        system_namespaces=tuple(sorted(set(model.system_namespaces))),
        trusted_namespaces=tuple(sorted(set(model.trusted_namespaces))),
        cgroup_roots=model.cgroup_roots,
        eviction=build_kube_eviction(model.eviction),
        events=model.events,
        leave_to_others=model.leave_to_others,
        static_isolation=model.static_isolation,
        service_profiles=model.service_profiles,
        profiles=build_kube_profiles(model.profiles),
        capacity=build_kube_capacity(model.capacity),
    )


def _own_node_name() -> str:
    # NODE_NAME comes from the downward API. The default of kubelet is the host's name in lower
    # case (pkg/util/node.GetHostname).
    return os.environ.get("NODE_NAME") or socket.gethostname().lower()


def _find_conflicts(model: KubernetesModel, node: str) -> Iterator[tuple[Loc, str]]:
    if not re.fullmatch(_NODE, node):
        found = " (found in NODE_NAME or as this host's name)" if model.node == AUTO else ""
        yield ("node",), f"{node[:64]!r} is not the name of a node{found}"
    path = model.kubeconfig
    if path != IN_CLUSTER and (
        not path.startswith("/") or ".." in Path(path).parts or "\0" in path
    ):
        yield ("kubeconfig",), f"must be {IN_CLUSTER}, or an absolute path without '..'"
    both = sorted(set(model.system_namespaces) & set(model.trusted_namespaces))
    if both:
        text = (
            f"{both[0]!r} is a system namespace: its pods have class system whatever their labels"
        )
        yield ("trusted_namespaces",), text
    if model.service_profiles is ServiceProfiles.TRUSTED and not model.trusted_namespaces:
        yield ("service_profiles",), "trusted needs trusted_namespaces, which is empty"
    for at, text in find_kube_profiles_conflicts(model.profiles):
        yield ("profiles", *at), text
