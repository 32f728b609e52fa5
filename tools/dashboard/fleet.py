# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Panels of the dashboard about a whole fleet.

They use the recording rules, whose number of series does not grow with the number of nodes.
Single nodes appear only as the worst ten.
"""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue, Panel

from tools.dashboard.panels import NODE, SERVICE, graph, of_cluster, recorded, stat, worst_first

__all__ = ("nodes", "services", "total", "work")

_MOST = 10
# From a node in a table to the dashboard about it.
_LINK = {"title": "This node", "url": "/d/sweetpoint?var-instance=${__value.raw}"}


def total() -> list[Builder[Panel]]:
    """Return the panels of agents: their modes and what is not well."""
    down, mode = (recorded("cluster", each) for each in ("agents_down:sum", "mode:count"))
    return [
        stat("Agents", "Agents that Prometheus scrapes.", "none", f"sum({mode}) or vector(0)"),
        stat(
            "Agents down",
            "Agents that do not answer Prometheus; see the alert SweetpointAgentDown.",
            "none",
            f"sum({down}) or vector(0)",
            limit=(1, 10),
        ),
        stat(
            "Nodes in the safe state",
            "Nodes whose agent has no data to act on.",
            "none",
            f"sum({recorded('cluster', 'safe_state:sum')}) or vector(0)",
            limit=(1, 10),
        ),
        stat(
            "Nodes paused",
            "Nodes on which everything is paused, so services are not protected.",
            "none",
            f"sum({recorded('cluster', 'paused:count')}) or vector(0)",
            limit=(1, 10),
        ),
        graph(
            "Nodes by mode",
            "Nodes whose agent observes or enforces.",
            "none",
            (f"sum by (mode) ({mode})", "{{mode}}"),
            stacked=True,
        ),
        graph(
            "Nodes that are not well",
            "Nodes by the source that control rests on and lacks, and nodes whose last "
            "configuration is refused.",
            "none",
            (
                f"sum by (source) ({recorded('cluster', 'source_degraded:sum')})",
                "without {{source}}",
            ),
            (f"sum({recorded('cluster', 'config_problem:sum')})", "configuration refused"),
        ),
        graph(
            "Rollout of a profile",
            "1 for the phase of the rollout; empty without a controller that leads.",
            "none",
            (f"{recorded('cluster', 'rollout_phase:max')} > 0", "{{cluster}} {{phase}}"),
        ),
        graph(
            "Canary nodes by verdict",
            "Nodes of the rollout by what their trial shows of the candidate.",
            "none",
            (recorded("cluster", "rollout_nodes:max"), "{{cluster}} {{verdict}}"),
            stacked=True,
        ),
    ]


def services() -> list[Builder[Panel]]:
    """Return the panels of services over all their nodes."""
    above = recorded("service", "above_sweet_point:ratio_rate5m", SERVICE)
    deviation = recorded("service", "loop_deviation:max", SERVICE)
    count = recorded("service", "indicator_status:count", SERVICE)
    return [
        worst_first(
            "Services now, the worst first",
            "Share of the time of its nodes in which the service was above a sweet point, the "
            "deviation on its worst node (0 at the sweet point, 1 at the tolerance), and its "
            "nodes.",
            (
                ("above its sweet point", "percentunit", above),
                ("worst deviation", "none", deviation),
                ("nodes", "none", count),
            ),
        ),
        graph(
            "Time above the sweet point, the ten worst services",
            "Share of the time of all nodes of the service, over five minutes.",
            "percentunit",
            (f"topk({_MOST}, {above})", "{{cluster}} {{service}}"),
        ),
        graph(
            "Deviation on the worst node, the ten worst services",
            "0 at the sweet point, 1 (orange) at the tolerance of the profile, 2 is the maximum.",
            "none",
            (f"topk({_MOST}, {deviation})", "{{cluster}} {{service}}"),
            bounds=(-1, 2),
            limit=(1, 2),
        ),
    ]


def work() -> list[Builder[Panel]]:
    """Return the panels of best-effort work: what it gets, what limits it, evictions."""
    granted, ceiling, limited, offered = (
        recorded("cluster", f"{each}:sum")
        for each in (
            "best_effort_granted_cpus",
            "best_effort_ceiling_cpus",
            "limited_workloads",
            "reclaimable_amount",
        )
    )
    evictions = recorded("cluster", "evictions:increase1h")
    state = recorded("cluster", "channel_state:sum", 'state!="free"')
    return [
        graph(
            "CPUs of best-effort work",
            "granted: CPUs that workloads with a quota may use, as read back. ceiling: the upper "
            "limit of all nodes with one.",
            "none",
            (f"sum by (cluster) ({granted})", "{{cluster}} granted"),
            (f"sum by (cluster) ({ceiling})", "{{cluster}} ceiling"),
            dashed="/ ceiling$/",
        ),
        graph(
            "Best-effort workloads that are limited",
            "Workloads that a knob of an agent limits; in observe mode, would limit.",
            "none",
            (f"sum by (cluster) ({limited})", "{{cluster}}"),
        ),
        graph(
            "Channels that are not free",
            "Nodes by channel and state; squeeze: best-effort work is limited.",
            "none",
            (f"sum by (channel, state) ({state}) > 0", "{{channel}} {{state}}"),
        ),
        graph(
            "Evictions in an hour",
            "Evictions asked for in the last hour, by the channel that caused them and by result.",
            "none",
            (f"sum by (reason, result) ({evictions}) > 0", "{{reason}} {{result}}"),
        ),
        graph(
            "Offered to best-effort pods",
            "Amount of each extended resource that the agents offer, in its own unit.",
            "none",
            (f"sum by (resource) ({offered})", "{{resource}}"),
        ),
    ]


def nodes() -> list[Builder[Panel]]:
    """Return the panels of single nodes: the worst ten."""
    link = [DynamicConfigValue(id_val="links", value=[_LINK])]
    deviation = of_cluster("loop_deviation", SERVICE)
    demand = of_cluster("channel_demand_ratio")
    return [
        worst_first(
            "The ten nodes that suffer most",
            "Largest deviation of a service on the node; the node leads to its own dashboard.",
            (("deviation", "none", f"topk({_MOST}, max by ({NODE}) ({deviation}))"),),
            span=12,
        ).override_by_name("instance", link),
        worst_first(
            "The ten nodes that squeeze most",
            "Largest demand of a channel: 100 % is the floor of all its knobs.",
            (("demand", "percentunit", f"topk({_MOST}, max by ({NODE}) ({demand}))"),),
            span=12,
        ).override_by_name("instance", link),
    ]
