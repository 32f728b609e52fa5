# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: the bandwidth that a pod's owner holds it to, in Koordinator's words.

``koordinator.sh/networkQOS: {"ingressLimit": "10M", "egressLimit": "20M"}``, bits per second.
"""

from collections.abc import Mapping
import json
from typing import NamedTuple

from controller.model import QosClass
from controller.workloads.kubernetes.asked import parse_quantity

__all__ = ("NETWORK_QOS", "NetworkLimit", "network_limit")

NETWORK_QOS = "koordinator.sh/networkQOS"
# HTB's arithmetic has no meaning below 1000 bytes a second.
_LEAST_BITS_PER_S = 8000
# As if nothing was said; the default there.
_NO_LIMIT = ("", "0")


class NetworkLimit(NamedTuple):
    """Bytes per second; ``None``: no limit in that direction. ``problem``: none counts, and why."""

    egress: int | None = None
    ingress: int | None = None
    problem: str | None = None


def network_limit(annotations: Mapping[str, str], qos: QosClass) -> NetworkLimit:
    """Return what the *annotations* of a pod of that class say.

    Only best-effort work is limited; and one mistake, and nothing of it counts.
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
    # Whoever wrote it for Go may have written the names in any case.
    said = {str(key).lower(): value for key, value in found.items()}
    amounts: list[int | None] = []
    for key in ("egressLimit", "ingressLimit"):
        value = said.get(key.lower(), "")
        bits = None if value in _NO_LIMIT else parse_quantity(value)
        if value not in _NO_LIMIT and (bits is None or bits < _LEAST_BITS_PER_S):
            text = "must be a quantity such as 20M, in bits per second and at least 8k"
            return NetworkLimit(problem=f"{NETWORK_QOS}: {key} {text}")
        amounts.append(None if bits is None else bits // 8)
    egress, ingress = amounts
    return NetworkLimit(egress, ingress)
