# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Amounts in the specification of a pod: what it requests, and what limits a best-effort pod.

Requests, also of extended resources, are in the resources of its containers. The bandwidth is in
Koordinator's annotation, in bits per second:
``koordinator.sh/networkQOS: {"ingressLimit": "10M", "egressLimit": "20M"}``.
"""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
import json
import math
import re
from typing import Any, NamedTuple

from controller.core.model import QosClass
from controller.workloads.pods.untrusted_json import mapping

__all__ = (
    "NETWORK_QOS",
    "NetworkLimit",
    "extended_requests",
    "network_limit",
    "parse_quantity",
    "requests_of",
)

_CURRENT = (
    "sweetpoint.dev/cpu",
    "sweetpoint.dev/memory",
    "kubernetes.io/batch-cpu",
    "kubernetes.io/batch-memory",
    "resource.katalyst.kubewharf.io/reclaimed_millicpu",
    "resource.katalyst.kubewharf.io/reclaimed_memory",
)
# The names of resources in a pod and those of today. The first two are Koordinator's older ones
# (apis/extension/deprecated.go); today's replace them where a pod has both.
_RESOURCES = {
    "koordinator.sh/batch-cpu": "kubernetes.io/batch-cpu",
    "koordinator.sh/batch-memory": "kubernetes.io/batch-memory",
    **dict(zip(_CURRENT, _CURRENT, strict=True)),
}
# k8s.io/apimachinery/pkg/api/resource/quantity.go, with bounded numbers and exponents.
_QUANTITY = re.compile(
    r"([0-9]{1,19}(?:\.[0-9]{0,9})?)(?:[eE]([0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)"
)
_SCALES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)},
}
_MAX_QUANTITY = 2**63 - 1


def parse_quantity(value: object, parts: int = 1) -> int | None:
    """Return a positive quantity of the API such as ``1500``, ``2k`` or ``1Gi``, rounded up.

    ``None``: *value* is not a quantity, or it is 0, or larger than the API's integers (2**63 - 1).

    :param parts: the result is in so many parts of its unit.
    """
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) <= 32 else None
    if match is None:
        return None
    scale = parts * 10 ** int(match[2] or 0) * _SCALES[match[3] or ""]
    number = math.ceil(Fraction(match[1]) * scale)
    return number if 0 < number <= _MAX_QUANTITY else None


def extended_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the amounts that the pod with *spec* requests, by resource; invalid ones are left out.

    The whole pod is limited to that, so a container without a request adds nothing.
    """
    return _sum(spec, _limits)


def requests_of(spec: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Return the CPUs and the bytes of memory that the pod with *spec* requests.

    ``None``: no container requests any, or not in a valid form.
    """
    found = _sum(spec, _requests)
    milli_cpus = found.get("cpu")
    return None if milli_cpus is None else milli_cpus / 1000, found.get("memory")


def _sum(
    spec: Mapping[str, Any], amounts_of: Callable[[Mapping[str, Any]], dict[str, int]]
) -> dict[str, int]:
    """Return the *amounts_of* the containers of a pod together, by the rule of the scheduler.

    That is their sum, or that of its largest init container if it is more.
    """
    total: dict[str, int] = {}
    largest: dict[str, int] = {}
    for container in _containers(spec, "containers"):
        _add(total, amounts_of(container))
    for container in _containers(spec, "initContainers"):
        amounts = amounts_of(container)
        if container.get("restartPolicy") == "Always":
            _add(total, amounts)  # a sidecar, which keeps running
        else:
            largest |= {name: max(amount, largest.get(name, 0)) for name, amount in amounts.items()}
    return {
        name: max(total.get(name, 0), largest.get(name, 0))
        for name in sorted(total.keys() | largest.keys())
    }


def _containers(spec: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = spec.get(key)
    for container in found if isinstance(found, list) else ():
        if isinstance(container, dict):
            yield container


def _limits(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources")
    found: dict[str, int] = {}
    for kind in ("requests", "limits"):  # the limit replaces the request where they differ
        amounts = resources.get(kind) if isinstance(resources, dict) else None
        if isinstance(amounts, dict):
            for name, today in _RESOURCES.items():
                amount = parse_quantity(amounts.get(name))
                if amount is not None:
                    found[today] = amount
    return found


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    # The API server fills in a request from the limit.
    requests = mapping(mapping(container, "resources"), "requests")
    found = {
        "cpu": parse_quantity(requests.get("cpu"), parts=1000),
        "memory": parse_quantity(requests.get("memory")),
    }
    return {name: amount for name, amount in found.items() if amount is not None}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


NETWORK_QOS = "koordinator.sh/networkQOS"
# Below 1000 bytes per second the arithmetic of HTB is meaningless (actuators.tc.ceiling).
_LEAST_BITS_PER_S = 8000
# Values that mean no limit; "" and 0 are the defaults of Koordinator.
_NO_LIMIT = ("", "0")


class NetworkLimit(NamedTuple):
    """Limits in bytes per second; ``None``: no limit in that direction.

    ``problem``: the reason why the annotation is ignored.
    """

    egress: int | None = None
    ingress: int | None = None
    problem: str | None = None


def network_limit(annotations: Mapping[str, str], qos: QosClass) -> NetworkLimit:
    """Return the limits in the *annotations* of a pod of class *qos*.

    Only best-effort pods are limited. An annotation with a mistake is ignored as a whole.
    """
    text = annotations.get(NETWORK_QOS)
    if not text or qos is QosClass.SYSTEM:
        return NetworkLimit()
    if qos is QosClass.LS:
        return NetworkLimit(problem=f"{NETWORK_QOS} is for best-effort pods, and this is none")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return NetworkLimit(problem=f"{NETWORK_QOS} is not a JSON object")
    # Go's decoder ignores the case of names, so existing annotations may have any.
    values = {str(key).lower(): value for key, value in found.items()}
    amounts: list[int | None] = []
    for key in ("egressLimit", "ingressLimit"):
        value = values.get(key.lower(), "")
        bits = None if value in _NO_LIMIT else parse_quantity(value)
        if value not in _NO_LIMIT and (bits is None or bits < _LEAST_BITS_PER_S):
            text = "must be a quantity such as 20M, in bits per second and at least 8k"
            return NetworkLimit(problem=f"{NETWORK_QOS}: {key} {text}")
        amounts.append(None if bits is None else bits // 8)
    egress, ingress = amounts
    return NetworkLimit(egress, ingress)
