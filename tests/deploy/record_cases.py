# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Samples of a few nodes, and what the recording rules make of them."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ("RECORDS", "RecordCase")


@dataclass(frozen=True)
class RecordCase:
    """Samples, one per minute, and the values of *record* at ``minute``, by its other labels."""

    record: str
    series: Mapping[str, str]
    values: Mapping[str, float]
    minute: int = 10


def _on(node: str, name: str, labels: str = "", cluster: str = "a") -> str:
    target = f'job="sweetpoint",cluster="{cluster}",namespace="ns",instance="{node}"'
    return f"{name}{{{','.join(filter(None, (target, labels)))}}}"


def _sum(name: str, labels: str = "", record: str = "") -> RecordCase:
    """Return a case in which *name* of three nodes in two clusters is added."""
    series = {
        _on("n1", name, labels): "1+0x20",
        _on("n2", name, labels): "2+0x20",
        _on("n1", name, labels, cluster="b"): "4+0x20",
    }
    more = f",{labels}" if labels else ""
    values = {f'cluster="a"{more}': 3.0, f'cluster="b"{more}': 4.0}
    return RecordCase(record or f"cluster:{name}:sum", series, values)


_MODES = {
    _on("n1", "sweetpoint_mode", 'mode="enforce"'): "1+0x20",
    _on("n2", "sweetpoint_mode", 'mode="enforce"'): "1+0x20",
    _on("n3", "sweetpoint_mode", 'mode="observe"'): "1+0x20",
}
_EVICTED = 'reason="cpu",result="evicted"'
_ABOVE = "sweetpoint_service_above_sweet_point_seconds_total"
_STATUS = {
    _on(node, "sweetpoint_indicator_status", f'service="web",indicator="{name}"'): "1+0x20"
    for node in ("n1", "n2", "n3", "n4")
    for name in ("runq_p99", "wait_ratio")
}
_RATIO = "service:sweetpoint_above_sweet_point:ratio_rate5m"

RECORDS = (
    RecordCase(
        "cluster:sweetpoint_mode:count",
        _MODES,
        {'cluster="a",mode="enforce"': 2, 'cluster="a",mode="observe"': 1},
    ),
    RecordCase(
        "cluster:sweetpoint_agents_down:sum",
        {_on("n1", "up"): "1+0x20", _on("n2", "up"): "0+0x20", 'up{job="x"}': "0+0x20"},
        {'cluster="a"': 1},
    ),
    _sum("sweetpoint_source_degraded", 'source="pods"'),
    _sum("sweetpoint_safe_state"),
    _sum("sweetpoint_config_problem"),
    # Of two sources on one node; a pause of a service is none of the node.
    RecordCase(
        "cluster:sweetpoint_paused:count",
        {
            **_MODES,
            _on("n1", "sweetpoint_paused", 'scope="everything",source="file"'): "1+0x20",
            _on("n1", "sweetpoint_paused", 'scope="everything",source="node"'): "1+0x20",
            _on("n2", "sweetpoint_paused", 'scope="service",source="file"'): "1+0x20",
        },
        {'cluster="a"': 1},
    ),
    RecordCase("cluster:sweetpoint_paused:count", _MODES, {'cluster="a"': 0}),
    *(
        RecordCase(
            f"cluster:{name}:max",
            {_on(pod, name, labels): f"{value}+0x20" for pod, value in (("p1", 0), ("p2", 1))},
            {f'cluster="a",{labels}': 1},
        )
        for name, labels in (
            ("sweetpoint_rollout_phase", 'phase="Canary"'),
            ("sweetpoint_rollout_nodes", 'verdict="better"'),
        )
    ),
    _sum("sweetpoint_channel_state", 'channel="cpu",state="squeeze"'),
    _sum("sweetpoint_limited_workloads"),
    _sum("sweetpoint_best_effort_granted_cpus"),
    _sum("sweetpoint_best_effort_ceiling_cpus"),
    _sum("sweetpoint_reclaimable_amount", 'resource="sweetpoint.dev/cpu"'),
    RecordCase(
        "cluster:sweetpoint_evictions:increase1h",
        {
            _on("n1", "sweetpoint_evictions_total", _EVICTED): "0+1x90",
            _on("n2", "sweetpoint_evictions_total", _EVICTED): "0+2x90",
        },
        {f'cluster="a",{_EVICTED}': 180},
        90,
    ),
    RecordCase(
        "service:sweetpoint_indicator_status:count", _STATUS, {'cluster="a",service="web"': 4}
    ),
    RecordCase(
        "service:sweetpoint_loop_deviation:max",
        {
            _on("n1", "sweetpoint_loop_deviation", 'service="web"'): "-1+0x20",
            _on("n2", "sweetpoint_loop_deviation", 'service="web"'): "0.5+0x20",
        },
        {'cluster="a",service="web"': 0.5},
    ),
    # 30 s of each minute on one node of four, by two states of one channel; the other is less.
    RecordCase(
        _RATIO,
        {
            **_STATUS,
            _on("n1", _ABOVE, 'service="web",channel="cpu",state="squeeze"'): "0+20x20",
            _on("n1", _ABOVE, 'service="web",channel="cpu",state="steal"'): "0+10x20",
            _on("n1", _ABOVE, 'service="web",channel="io",state="squeeze"'): "0+15x20",
        },
        {'cluster="a",service="web"': 0.125},
    ),
    RecordCase(_RATIO, _STATUS, {'cluster="a",service="web"': 0}),
)
