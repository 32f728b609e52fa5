# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Amounts that a best-effort pod is limited to: extended resources and network bandwidth.

The extended resources are in the requests and limits of its containers. The bandwidth is in
Koordinator's annotation, in bits per second:
``koordinator.sh/networkQOS: {"ingressLimit": "10M", "egressLimit": "20M"}``.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
import json
import math
import re
from typing import Any, NamedTuple

from controller.core.model import QosClass

__all__ = (
    "NETWORK_QOS",
    "NetworkLimit",
    "extended_requests",
    "network_limit",
    "parse_quantity",
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


def parse_quantity(value: object) -> int | None:
    """Return a positive quantity of the API such as ``1500``, ``2k`` or ``1Gi``, rounded up.

    ``None``: *value* is not a quantity, or it is 0, or larger than the API's integers (2**63 - 1).
    """
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) <= 32 else None
    if match is None:
        return None
    number = math.ceil(Fraction(match[1]) * 10 ** int(match[2] or 0) * _SCALES[match[3] or ""])
    return number if 0 < number <= _MAX_QUANTITY else None


def extended_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the amounts that the pod with *spec* requests, by resource; invalid ones are left out.

    The rule is that of the scheduler: the sum of its containers, or its largest init container if
    that is more. The whole pod is limited to that, so a container without a request adds nothing.
    """
    total: dict[str, int] = {}
    largest: dict[str, int] = {}
    for container in _containers(spec, "containers"):
        _add(total, _limits(container))
    for container in _containers(spec, "initContainers"):
        limits = _limits(container)
        if container.get("restartPolicy") == "Always":
            _add(total, limits)  # a sidecar, which keeps running
        else:
            largest |= {name: max(amount, largest.get(name, 0)) for name, amount in limits.items()}
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
