# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From the agent's /statusz to the few numbers that the demonstration follows."""

from collections.abc import Mapping
from typing import Any

from controller.units import NS_PER_MS

__all__ = ("parse_status",)

INDICATOR = "runq_p99"


def parse_status(status: Mapping[str, Any], be_prefix: str) -> dict[str, Any]:
    """Return the fields of ``results.Sample`` that *status* tells; only those it does tell.

    *be_prefix* is what the paths of the best-effort cgroups begin with.
    """
    plan = status.get("plan") or {}
    loops = [loop for loop in plan.get("loops", ()) if loop["indicator"] == INDICATOR]
    found: dict[str, Any] = {}
    if loops:
        loop = loops[0]
        if loop["value"] is not None:
            found["runq_p99_ms"] = loop["value"] / NS_PER_MS
        found["sweet_point_ms"] = loop["sweet_point"] / NS_PER_MS
        found["deviation"] = loop["deviation"]
        found["filtered_deviation"] = loop["filtered_deviation"]
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
