# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is done to best-effort work: knobs, its allowance, blame, decisions and evictions."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from tools.dashboard.panels import NODE, equal, graph, rate, series, states

__all__ = ("allowance", "blame", "decisions", "knobs")

_RUNG = "{{instance}} {{channel}} {{knob}}"
_WORKLOAD = "{{instance}} {{workload}}"
_INFO = f"on ({NODE}, workload) group_left (class)"


def knobs() -> list[Builder[Panel]]:
    """What the ladders want, what the kernel has, and which stops are reached."""
    usable = (("cannot move", "#8e8e8e"), ("can move", "green"))
    return [
        graph(
            "Wanted: how far each knob is from free to its stop",
            "0: free. 100 % (red): at its stop, nothing is left to take. Knobs of a channel move "
            "one after the other, the cheapest first.",
            "percentunit",
            (series("rung_part_ratio"), _RUNG),
            bounds=(0, 1),
            limit=(0.99, 1),
        ),
        states(
            "Which knobs can be moved now",
            "A knob cannot move where the kernel has none, where there is no best-effort work, or "
            "where somebody else keeps writing it.",
            (series("rung_usable"), _RUNG),
            usable,
        ),
        graph(
            "Applied: CPU quotas, the ten smallest",
            "Quota of best-effort workloads as read back from the kernel. No line: no quota.",
            "none",
            (f"bottomk(10, {series('quota_applied_cpus')})", _WORKLOAD),
        ),
        graph(
            "Applied: sched-idle and cookies",
            "Cgroups with cpu.idle set, and groups with a core-scheduling cookie, as read back. "
            "'gives way in part' are idle cgroups that not every service has beside it.",
            "none",
            (f"sum by ({NODE}) ({series('sched_idle')})", "{{instance}} idle"),
            (series("sched_idle_partial"), "{{instance}} gives way in part"),
            (f"sum by ({NODE}) ({series('core_cookie')})", "{{instance}} cookies"),
        ),
        graph(
            "Applied: memory.high, the ten smallest",
            "Limit above which best-effort work is slowed down and reclaimed. No line: no limit.",
            "bytes",
            (f"bottomk(10, {series('memory_high_bytes')})", _WORKLOAD),
        ),
        graph(
            "Applied: io.weight, the ten smallest",
            "Weight of best-effort work's disk traffic; 100 is the kernel's default.",
            "none",
            (f"bottomk(10, {series('io_weight')})", _WORKLOAD),
        ),
        graph(
            "Writes to knobs",
            "applied: done. refused: the kernel said no. foreign: somebody else had changed the "
            "value. gone: the workload had left, which is normal.",
            "wps",
            (
                f"sum by ({NODE}, knob, result) ({rate('knob_writes_total')}) > 0",
                "{{instance}} {{knob}} {{result}}",
            ),
        ),
        graph(
            "Knobs that somebody else wrote",
            "Values of ours that somebody else replaced, in five minutes. Theirs is kept as the "
            "original; after three times in ten minutes the knob is left to them.",
            "none",
            (
                f"increase({series('knob_overwrites_total')}[5m]) > 0",
                "{{instance}} {{knob}}",
            ),
        ),
    ]


def allowance() -> list[Builder[Panel]]:
    """What best-effort work may use and what it uses."""
    by_class = (
        f"sum by ({NODE}, class) ({rate('workload_oncpu_seconds_total')} * {_INFO} "
        f"{series('workload_info')})"
    )
    best_effort = series("workload_info", equal("class", "best-effort"))
    return [
        graph(
            "Best-effort work: allowed and used",
            "CPUs. ceiling: what the services leave over. granted: the sum of quotas, while there "
            "are any. used: what best-effort work runs on. Used far below granted is idle capacity "
            "that nobody asks for.",
            "none",
            (
                f"sum by ({NODE}) ({rate('workload_oncpu_seconds_total')} * {_INFO} {best_effort})",
                "{{instance}} used",
            ),
            (series("best_effort_granted_cpus"), "{{instance}} granted"),
            (series("best_effort_ceiling_cpus"), "{{instance}} ceiling"),
            dashed="/ (granted|ceiling)$/",
        ),
        graph(
            "CPUs by class",
            "CPUs on which latency-sensitive, best-effort and system workloads run. Work outside "
            "all workloads is not in it.",
            "none",
            (by_class, "{{instance}} {{class}}"),
            stacked=True,
        ),
        graph(
            "Best-effort workloads that use most",
            "CPUs, the ten largest.",
            "none",
            (
                f"topk(10, {rate('workload_oncpu_seconds_total')} * {_INFO} {best_effort})",
                _WORKLOAD,
            ),
        ),
        graph(
            "Network traffic of workloads",
            "IP bytes per second, both directions, the ten largest.",
            "Bps",
            (
                f"topk(10, sum by ({NODE}, workload) ({rate('workload_network_bytes_total')}))",
                _WORKLOAD,
            ),
        ),
    ]


def blame() -> list[Builder[Panel]]:
    """Who makes whom wait."""
    return [
        graph(
            "Who makes whom wait",
            "Seconds per second for which the victim's tasks waited because the culprit ran, the "
            "ten largest pairs. system: work outside all workloads. unknown: not attributed.",
            "none",
            (
                f"topk(10, {rate('blame_wait_seconds_total')})",
                "{{instance}} {{culprit}} → {{victim}}",
            ),
        ),
        graph(
            "Wait of services, and the part that others inflicted",
            "Seconds per second, the ten largest. The difference between the two is the service's "
            "own: its own threads, or its own quota.",
            "none",
            (
                f"topk(10, {rate('workload_wait_inflicted_seconds_total')})",
                f"{_WORKLOAD} by others",
            ),
            (
                f"topk(10, {rate('workload_wait_seconds_total')} and on ({NODE}, workload) "
                f"{series('workload_info', equal('class', 'latency-sensitive'))})",
                f"{_WORKLOAD} all",
            ),
            dashed="/ all$/",
        ),
        graph(
            "Pressure of services",
            "Share of time in which some task of the service waited for the resource (PSI), the "
            "ten largest.",
            "percentunit",
            (
                f"topk(10, {rate('workload_pressure_seconds_total')})",
                "{{instance}} {{workload}} {{resource}}",
            ),
        ),
        graph(
            "Pressure of nodes",
            "Share of time in which some task of the node waited for the resource (PSI).",
            "percentunit",
            (rate("host_pressure_seconds_total"), "{{instance}} {{resource}}"),
        ),
    ]


def decisions() -> list[Builder[Panel]]:
    """What was decided, how often, and who was evicted."""
    ticks = f"sum by (channel, state) ({rate('channel_ticks_total')})"
    return [
        graph(
            "Decisions by reason",
            "Share of time that each channel spent in each state, over the selected nodes.",
            "percentunit",
            (
                f"{ticks} / on (channel) group_left () sum by (channel) ({ticks})",
                "{{channel}} {{state}}",
            ),
            bounds=(0, 1),
        ),
        graph(
            "Evictions by reason and result",
            "In five minutes. evicted: on its way. unanswered: asked for, and perhaps on its way. "
            "gone: it had left before. refused: a disruption budget said no, the next pod is asked "
            "for. held: nobody can be evicted now, the API server is away. reported: what would be "
            "evicted, but the agent only observes. frozen, killed: on plain hosts that are "
            "configured so.",
            "none",
            (
                f"sum by (reason, result) (increase({series('evictions_total')}[5m])) > 0",
                "{{reason}}: {{result}}",
            ),
        ),
    ]
