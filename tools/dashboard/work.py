# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Panels of best-effort work: knobs, allowance and use, blame, decisions and evictions."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from tools.dashboard.panels import NODE, equal, graph, rate, series, states

__all__ = ("allowance", "blame", "decisions", "knobs")

_RUNG = "{{instance}} {{channel}} {{knob}}"
_WORKLOAD = "{{instance}} {{workload}}"
_INFO = f"on ({NODE}, workload) group_left (class)"


def knobs() -> list[Builder[Panel]]:
    """Return the panels of knobs: wanted by the ladders, applied in the kernel, writes."""
    usable = (("cannot move", "#8e8e8e"), ("can move", "green"))
    return [
        graph(
            "Wanted: position of each knob between free and floor",
            "0: not limited. 100 % (red): at its floor. The knobs of a channel are used one after "
            "the other, the cheapest first.",
            "percentunit",
            (series("rung_part_ratio"), _RUNG),
            bounds=(0, 1),
            limit=(0.99, 1),
        ),
        states(
            "Which knobs can be moved now",
            "A knob cannot be moved if the kernel lacks it, without best-effort work, or if "
            "another program keeps writing it.",
            (series("rung_usable"), _RUNG),
            usable,
        ),
        graph(
            "Applied: CPU quotas, the ten smallest",
            "Quotas of best-effort workloads in CPUs, as read back from the kernel. No line: no "
            "quota.",
            "none",
            (f"bottomk(10, {series('quota_applied_cpus')})", _WORKLOAD),
        ),
        graph(
            "Applied: sched-idle and cookies",
            "idle: cgroups with cpu.idle set. cookies: groups with a core-scheduling cookie. idle "
            "in part: idle cgroups that yield to some services only, because they are not siblings "
            "of all of them. All as read back.",
            "none",
            (f"sum by ({NODE}) ({series('sched_idle')})", "{{instance}} idle"),
            (series("sched_idle_partial"), "{{instance}} idle in part"),
            (f"sum by ({NODE}) ({series('core_cookie')})", "{{instance}} cookies"),
        ),
        graph(
            "Applied: memory.high, the ten smallest",
            "Memory above which best-effort work is throttled and reclaimed. No line: no limit.",
            "bytes",
            (f"bottomk(10, {series('memory_high_bytes')})", _WORKLOAD),
        ),
        graph(
            "Applied: io.weight, the ten smallest",
            "Weight of best-effort work's disk traffic; the default of the kernel is 100.",
            "none",
            (f"bottomk(10, {series('io_weight')})", _WORKLOAD),
        ),
        graph(
            "Writes to knobs",
            "applied: written. refused: the kernel returned an error. foreign: another program had "
            "changed the value. gone: the workload had ended, which is normal.",
            "wps",
            (
                f"sum by ({NODE}, knob, result) ({rate('knob_writes_total')}) > 0",
                "{{instance}} {{knob}} {{result}}",
            ),
        ),
        graph(
            "Foreign writes to knobs",
            "Values of the agent that another program replaced, in five minutes. The foreign value "
            "becomes the original; after three times in ten minutes the agent leaves the knob "
            "alone.",
            "none",
            (
                f"increase({series('knob_overwrites_total')}[5m]) > 0",
                "{{instance}} {{knob}}",
            ),
        ),
    ]


def allowance() -> list[Builder[Panel]]:
    """Return the panels of the CPUs that best-effort work may use and uses."""
    by_class = (
        f"sum by ({NODE}, class) ({rate('workload_oncpu_seconds_total')} * {_INFO} "
        f"{series('workload_info')})"
    )
    best_effort = series("workload_info", equal("class", "best-effort"))
    return [
        graph(
            "Best-effort work: allowed and used",
            "CPUs. ceiling: CPUs that the services do not use. granted: the sum of quotas, while "
            "there are any. used: CPU use of best-effort work. If used is far below granted, "
            "best-effort work has no demand for the rest.",
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
            "CPU use of latency-sensitive, best-effort and system workloads. Work outside all "
            "workloads is not included.",
            "none",
            (by_class, "{{instance}} {{class}}"),
            stacked=True,
        ),
        graph(
            "Best-effort workloads with the highest CPU use",
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
    """Return the panels of waits, their causes, and pressure."""
    return [
        graph(
            "Blame: wait of victims by culprit",
            "Seconds per second for which tasks of the victim waited while the culprit ran, the "
            "ten largest pairs. system: work outside all workloads. unknown: not attributed.",
            "none",
            (
                f"topk(10, {rate('blame_wait_seconds_total')})",
                "{{instance}} {{culprit}} → {{victim}}",
            ),
        ),
        graph(
            "Wait of services, and the part caused by others",
            "Seconds per second, the ten largest. The difference between the two is caused by the "
            "service itself: its own threads, or its own quota.",
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
    """Return the panels of decisions and evictions."""
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
            "In five minutes. evicted: the pod is terminating. unanswered: the request got no "
            "answer, so the pod may be terminating. gone: the pod had ended before. refused: by a "
            "disruption budget; the next pod is tried. held: evictions are not possible now, for "
            "example without API server. reported: not executed, in observe mode or with "
            "evictions disabled. frozen, killed: without Kubernetes, as configured.",
            "none",
            (
                f"sum by (reason, result) (increase({series('evictions_total')}[5m])) > 0",
                "{{reason}}: {{result}}",
            ),
        ),
    ]
