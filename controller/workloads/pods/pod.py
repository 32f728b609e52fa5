# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parsing of pods from the JSON of the API server, which is not trusted.

The owner of a pod chooses its names, labels and annotations. None of them is used as a path or a
command, what is kept is bounded, and a pod without a valid identity is refused as a whole.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
import ipaddress
import re
from typing import Any, NamedTuple

from controller.workloads.pods.requests import extended_requests, requests_of
from controller.workloads.pods.untrusted_json import items, mapping, shown

__all__ = (
    "MAX_CHARS",
    "SYSTEM_PRIORITY",
    "Owner",
    "Pod",
    "PodError",
    "Pods",
    "RuntimePod",
    "is_known_key",
    "is_uuid",
    "parse_pod",
    "parse_runtime_pod",
)

# The API server gives each pod a UUID. The id of a static pod comes from its manifest: metadata.uid
# in any form, by default an MD5 (applyDefaults in pkg/kubelet/config/common.go). kubelet refuses
# "/" and "_", because the id becomes a name of a cgroup (NewCgroupName in pkg/kubelet/cm).
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_STATIC_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:-]{0,190}")
# type://ID in the status of a container.
_CONTAINER_ID = re.compile(r"[a-z0-9.+-]{1,32}://([0-9A-Za-z][0-9A-Za-z._-]{0,127})")
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
# registry/path/NAME:tag@digest, with names as in the OCI distribution specification.
_IMAGE = re.compile(
    r"(?:[^\s@]{0,512}/)?([a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?)(?::[\w.-]{1,128})?(?:@.*)?"
)
_MAX_CONTAINERS = 64
_QOS_CLASSES = ("Guaranteed", "Burstable", "BestEffort")
# Keys of labels and annotations that the agent uses; the others are dropped.
_PREFIXES = (
    "sweetpoint.dev/",
    "koordinator.sh/",
    "node.koordinator.sh/",
    "katalyst.kubewharf.io/",
    "spd.katalyst.kubewharf.io/",
    "kubernetes.io/config.",
    "app.kubernetes.io/",
    "rdt.resources.beta.kubernetes.io/",
    "blockio.resources.beta.kubernetes.io/",
)
_LABELS = frozenset({"app", "k8s-app", "koord-app", "pod-template-hash"})
# The value of a label has at most 63 characters, an annotation up to 256 KiB. The longest one that
# the agent reads is a small JSON object.
_MAX_VALUE_CHARS = 4096
# Keys that the API server accepts: RFC 1123 subdomain, slash, name. They are printed.
_KEY = re.compile(r"[A-Za-z0-9._/-]{1,317}")
# Bounds for one pod, keys and values together, so that no pod can fill the agent's memory.
MAX_CHARS = 16_384
_MAX_OVERSIZED = 8
_INT32 = range(-(2**31), 2**31)
_MIRROR, _HASH = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"
# kubelet writes it to every pod that it gets, over what the owner wrote (pkg/kubelet/config).
_SOURCE, _FROM_API = "kubernetes.io/config.source", "api"
# Of the containers of pods that are critical to the node, and of all Guaranteed pods
# (pkg/kubelet/qos/policy.go).
_CRITICAL_SCORE = -997
# Priorities from this one on are reserved for system-critical pods
# (pkg/apis/scheduling.SystemCriticalPriority).
SYSTEM_PRIORITY = 2_000_000_000


class PodError(Exception):
    """A pod object that cannot be used; the message is one line and safe to print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The controller of a pod."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of this node. ``labels`` and ``annotations`` contain only known keys.

    ``uid`` is the id in the name of the pod's cgroup. ``oversized`` has the keys of annotations
    that were dropped for their length. ``containers`` has the ids of the containers, as kubelet
    reports them. ``images`` has the last parts of the names of the images, without tag and digest,
    ``image_key`` is a hash of the full names. ``finished``: it ended, well (``succeeded``) or not.
    ``ip`` is the address of the pod, empty while it has none. ``grace_s`` is the time that the pod
    may take to stop, in seconds. ``requests`` has the amounts of extended resources for best-effort
    work, by resource name. ``request_cpus`` and ``request_memory_bytes`` are what it requests of
    the usual ones; ``None``: nothing, or unknown.

    ``mirror``: the mirror pod of a static pod, an API object that kubelet makes for it. Its ``uid``
    here is the id of the static pod and not the UUID of the object. Any pod can have the annotation
    of a mirror pod, but kubelet does not run such a pod under its own UUID.
    """

    uid: str
    namespace: str
    name: str
    qos_class: str
    priority: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: Owner | None = None
    service_account: str = ""
    mirror: bool = False
    finished: bool = False
    succeeded: bool = False
    terminating: bool = False
    oversized: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    image_key: str = ""
    grace_s: int = 30
    requests: Mapping[str, int] = field(default_factory=dict)
    request_cpus: float | None = None
    request_memory_bytes: int | None = None
    ip: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, for messages."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of this node by their ``uid``.

    ``claims``: pods that claim to be the mirror of a static pod with a UUID, by that UUID. It may
    be the id of another pod. Any other id is that of a static pod, because no user chooses an id.
    ``synced``: the API server has sent the list at least once, so a pod that is missing here did
    not exist then. ``refused`` is the number of objects that could not be parsed.
    """

    pods: Mapping[str, Pod] = field(default_factory=dict)
    claims: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    synced: bool = False
    refused: int = 0


def is_known_key(key: str) -> bool:
    """Return whether the agent uses the label or annotation *key*, whatever its rules are."""
    return key in _LABELS or key.startswith(_PREFIXES)


def is_uuid(uid: str) -> bool:
    """Return whether the API server may have given *uid* to a pod."""
    return _UUID.fullmatch(uid) is not None


def parse_pod(raw: Mapping[str, Any], label_keys: frozenset[str] = frozenset()) -> Pod:
    """Return the pod in *raw*, an object as the API server sends it.

    *label_keys* are the keys of further labels to keep, which rules of the administrator match.

    :raises PodError: a field that identifies the pod is missing or malformed.
    """
    meta, spec, status = (mapping(raw, key) for key in ("metadata", "spec", "status"))
    namespace, name = _name(meta, "namespace"), _name(meta, "name")
    annotations, oversized = _known(mapping(meta, "annotations"), frozenset())
    mirror = _MIRROR in annotations
    uid = annotations.get(_HASH) if mirror else meta.get("uid")
    if not isinstance(uid, str) or not (_STATIC_ID if mirror else _UUID).fullmatch(uid):
        raise PodError(f"pod {namespace}/{name}: {shown(uid)} is not the id of a pod")
    labels, _ = _known(mapping(meta, "labels"), _LABELS | label_keys)
    request_cpus, memory_bytes = requests_of(spec)
    return Pod(
        uid=uid,
        namespace=namespace,
        name=name,
        qos_class=_qos_class(spec, status),
        priority=_integer(spec.get("priority")),
        labels=labels,
        annotations=annotations,
        owner=_owner(meta),
        service_account=_text(spec.get("serviceAccountName")),
        mirror=mirror,
        finished=status.get("phase") in ("Succeeded", "Failed"),
        succeeded=status.get("phase") == "Succeeded",
        terminating=meta.get("deletionTimestamp") is not None,
        oversized=oversized,
        grace_s=_integer(spec.get("terminationGracePeriodSeconds", 30)),
        containers=tuple(sorted(_containers(status))),
        images=tuple(sorted(set(_images(spec)))),
        image_key=_image_key(spec),
        requests=extended_requests(spec),
        request_cpus=request_cpus,
        request_memory_bytes=memory_bytes,
        ip=_address(status.get("podIP")),
    )


class RuntimePod(NamedTuple):
    """A pod as the container runtime knows it; ``oom_score_adj`` is that of its containers.

    Labels and annotations as they were when its sandbox was made; their owner chose them. All known
    ones are there, of other labels as many as ``MAX_CHARS`` allows. ``sandbox`` is the id of the
    newest sandbox; after the end of its process the pod gets another one.
    ``limited``: a container has a CPU quota, although the pod is of the QoS class BestEffort. So it
    is one of a plugin of the runtime.
    """

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    oom_score_adj: int
    limited: bool = False
    sandbox: str = ""

    def with_earlier(self, earlier: "RuntimePod | None") -> "RuntimePod":
        """Return the pod as a later container shows it; *earlier*: as earlier ones did."""
        return self._replace(limited=True) if earlier is not None and earlier.limited else self


def parse_runtime_pod(
    given: RuntimePod, qos_class: str, label_keys: frozenset[str] = frozenset()
) -> Pod:
    """Return the pod that the runtime knows as *given*, whose cgroup has the class *qos_class*.

    A static pod has ``mirror``, as its mirror pod would. Of the priority only is known whether the
    pod is critical to the node. Owner, images, requests, containers and grace period are not.

    :raises PodError: a field that identifies the pod is malformed.
    """
    annotations = {key: text for key, text in given.annotations.items() if key != _MIRROR}
    if annotations.get(_SOURCE, _FROM_API) != _FROM_API:
        annotations |= {_MIRROR: "", _HASH: given.uid}
    critical = qos_class != "Guaranteed" and given.oom_score_adj <= _CRITICAL_SCORE
    return parse_pod(
        {
            "metadata": {
                "namespace": given.namespace,
                "name": given.name,
                "uid": given.uid,
                "labels": given.labels,
                "annotations": annotations,
            },
            "spec": {"priority": SYSTEM_PRIORITY if critical else 0},
            "status": {"qosClass": qos_class},
        },
        label_keys,
    )


def _name(meta: Mapping[str, Any], key: str) -> str:
    value = meta.get(key)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise PodError(f"a pod without a valid metadata.{key}: {shown(value)}")
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""


def _address(value: object) -> str:
    """Return the address of a pod in its shortest form; empty if it cannot be that of one."""
    try:
        found = ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        return ""
    odd = found.is_loopback or found.is_multicast or found.is_link_local or found.is_unspecified
    return "" if odd else str(found)


def _integer(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value in _INT32:
        return value
    return 0


def _known(raw: Mapping[str, Any], names: frozenset[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    kept: dict[str, str] = {}
    oversized = []
    left = MAX_CHARS
    for key in sorted(key for key in raw if key in names or key.startswith(_PREFIXES)):
        value = raw[key]
        if not isinstance(value, str) or not _KEY.fullmatch(key):
            continue
        if len(value) > _MAX_VALUE_CHARS or len(key) + len(value) > left:
            oversized.append(key)
        else:
            left -= len(key) + len(value)
            kept[key] = value
    return kept, tuple(oversized[:_MAX_OVERSIZED])


def _qos_class(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    given = status.get("qosClass")
    if given in _QOS_CLASSES:
        return str(given)
    # The status has no class before kubelet has seen the pod. The rule is that of
    # pkg/apis/core/v1/helper/qos.ComputePodQOS, as far as it is needed to choose the class.
    wanted, limited, everywhere = False, True, True
    for container in (*items(spec, "containers"), *items(spec, "initContainers")):
        resources = mapping(container, "resources")
        limits, requests = mapping(resources, "limits"), mapping(resources, "requests")
        wanted = wanted or any(r in limits or r in requests for r in ("cpu", "memory"))
        everywhere = everywhere and all(r in limits for r in ("cpu", "memory"))
        limited = limited and all(requests.get(r, limits.get(r)) == limits.get(r) for r in limits)
    if not wanted:
        return "BestEffort"
    return "Guaranteed" if everywhere and limited else "Burstable"


def _owner(meta: Mapping[str, Any]) -> Owner | None:
    for reference in items(meta, "ownerReferences"):
        if reference.get("controller") is True:
            kind = reference.get("kind")
            name = _text(reference.get("name"))
            if isinstance(kind, str) and kind.isalnum() and len(kind) <= 63 and name:
                return Owner(kind=kind, name=name)
    return None


def _containers(status: Mapping[str, Any]) -> Iterator[str]:
    for key in _STATUSES:
        for container in items(status, key)[:_MAX_CONTAINERS]:
            given = container.get("containerID")
            if isinstance(given, str) and (match := _CONTAINER_ID.fullmatch(given)):
                yield match[1]


def _image_key(spec: Mapping[str, Any]) -> str:
    """Return a hash of the names of all images, with tag and digest; empty without a name."""
    names = [each.get("image") for each in items(spec, "containers")[:_MAX_CONTAINERS]]
    known = "\0".join(sorted(name[:1024] for name in names if isinstance(name, str)))
    return blake2b(known.encode(errors="replace"), digest_size=8).hexdigest() if known else ""


def _images(spec: Mapping[str, Any]) -> Iterator[str]:
    for container in items(spec, "containers")[:_MAX_CONTAINERS]:
        name = container.get("image")
        if isinstance(name, str) and (match := _IMAGE.fullmatch(name[:1024])):
            yield match[1]
