# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From the agent's /statusz to the few numbers that the demonstration follows."""

from collections.abc import Mapping
from typing import Any

from controller.units import NS_PER_MS

__all__ = ("parse_status",)

# Indicator: the fields of its value and of its sweet point.
_INDICATORS = {
    "runq_p99": ("runq_p99_ms", "sweet_point_ms"),
    "runq_delay_p99": ("delay_p99_ms", "delay_sweet_point_ms"),
}


def parse_status(status: Mapping[str, Any], be_prefix: str) -> dict[str, Any]:
    """Return the fields of ``results.Sample`` that *status* tells; only those it does tell.

    *be_prefix* is what the paths of the best-effort cgroups begin with.
    """
    plan = status.get("plan") or {}
    loops = [loop for loop in plan.get("loops", ()) if loop["indicator"] in _INDICATORS]
    found: dict[str, Any] = {}
    for loop in loops:
        value, sweet_point = _INDICATORS[loop["indicator"]]
        if loop["value"] is not None:
            found[value] = loop["value"] / NS_PER_MS
        found[sweet_point] = loop["sweet_point"] / NS_PER_MS
    for name in ("deviation", "filtered_deviation"):
        known = [loop[name] for loop in loops if loop[name] is not None]
        if known:
            found[name] = max(known)
    for demand in plan.get("demands", ()):
        if demand["channel"] == "cpu":
            found["demand"], found["state"] = demand["applied"], demand["state"]
    return found | _knobs(status.get("knobs", ()), be_prefix)


def _knobs(knobs: Any, be_prefix: str) -> dict[str, Any]:
    idle, quotas = [], []
    for knob in knobs:
        if not str(knob["path"]).startswith(be_prefix) or not knob["applied"]:
            continue
        words = str(knob["applied"]).split()
        if knob["knob"] == "cpu.idle":
            idle.append(words[0] == "1")
        elif knob["knob"] == "cpu.quota" and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    found: dict[str, Any] = {}
    if idle:
        found["be_idle"] = any(idle)
    if quotas:
        found["be_quota_cpus"] = min(quotas)
    return found
