# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Panels of the agents' health, of links, and of caches, memory bandwidth and cores."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from tools.dashboard.panels import NODE, equal, graph, rate, series, states

__all__ = ("health", "links", "resctrl")

_NODE = "{{instance}}"
_TIER = "{{instance}} {{device}} {{direction}} {{tier}}"
_OFF_ON = (("off", "red"), ("on", "green"))


def health() -> list[Builder[Panel]]:
    """Return the panels of ticks, data, probes and cost of the agents."""
    missed = rate("missed_context_switches_total")
    return [
        graph(
            "Duration of a tick",
            "50th and 99th percentile of the last 600 ticks. A tick is due every 200 ms unless "
            "configured otherwise.",
            "s",
            (series("tick_duration_recent_seconds", 'percentile="50"'), "{{instance}} p50"),
            (series("tick_duration_recent_seconds", 'percentile="99"'), "{{instance}} p99"),
        ),
        graph(
            "Lateness of a tick",
            "Time from when a tick was due to its start, 50th and 99th percentile of the last 600 "
            "ticks: how long the agent itself waits for a CPU, or for the end of an overrun tick.",
            "s",
            (series("tick_late_recent_seconds", 'percentile="50"'), "{{instance}} p50"),
            (series("tick_late_recent_seconds", 'percentile="99"'), "{{instance}} p99"),
        ),
        graph(
            "Overrun and failed ticks",
            "overrun: share of ticks that took longer than their period. failed: share of ticks "
            "that were aborted by an error in the agent, after which all knobs were restored; see "
            "its log.",
            "percentunit",
            (f"{rate('tick_overruns_total')} / {rate('ticks_total')}", "{{instance}} overrun"),
            (f"{rate('tick_failures_total')} / {rate('ticks_total')}", "{{instance}} failed"),
        ),
        graph(
            "Age of the data",
            "Time since the newest event of the sched probe. A busy node has one in every "
            "millisecond.",
            "s",
            (series("data_age_seconds"), _NODE),
        ),
        graph(
            "Ticks per second",
            "5 with the default tick. 0: the loop is stalled.",
            "none",
            (rate("ticks_total"), _NODE),
        ),
        graph(
            "CPU of the agent",
            "CPUs used by all its processes, and by the probes' programs if the kernel counts "
            "them. Above the budget (dashed) the agent measures less detail.",
            "none",
            (series("agent_used_cpus"), _NODE),
            (f"max({series('budget_cpus')})", "budget"),
            dashed="/^budget$/",
        ),
        graph(
            "Memory of the agent",
            "Sum of PSS over its processes. Above the budget (dashed) the agent logs a warning.",
            "bytes",
            (series("agent_pss_bytes"), _NODE),
            (f"max({series('budget_bytes')})", "budget"),
            dashed="/^budget$/",
        ),
        states(
            "Probes",
            "on: loaded. off: not loaded; 'sweetpoint doctor' on the node shows the reason. "
            "Without 'sched' the agent has no indicators to control.",
            (f"min without (reason) ({series('probe_up')})", "{{instance}} {{probe}}"),
            _OFF_ON,
        ),
        states(
            "Measurement detail shed by the agent",
            "Above its CPU budget the agent measures less: first without counters, then without "
            "blame, then by sampling.",
            (series("detail_shed"), "{{instance}} {{detail}}"),
            (("measured", "green"), ("shed", "orange")),
        ),
        graph(
            "Missed context switches",
            "Share of all context switches that the kernel did not report to the probe. 0 on most "
            "hosts; nested virtual machines lose some, and the waits before them.",
            "percentunit",
            (f"{missed} / ({missed} + {rate('context_switches_total')})", _NODE),
        ),
        graph(
            "Workloads that are not measured",
            "Workloads without a slot in the sched probe or, if latency-sensitive, without a "
            "histogram. Services come first; work of the others counts as unknown.",
            "none",
            (series("workloads_unmeasured"), "{{instance}} {{class}}"),
        ),
        graph(
            "CPU time of work in no known workload",
            "Tasks of best-effort workloads without a slot, and those more than 32 cgroups below "
            "the root.",
            "none",
            (rate("unknown_oncpu_seconds_total"), _NODE),
        ),
        graph(
            "CPU time of the probes' programs",
            "Seconds per second; only while kernel.bpf_stats_enabled is 1.",
            "none",
            (rate("probe_run_seconds_total"), "{{instance}} {{probe}}"),
        ),
        states(
            "Configuration",
            "refused: a reload failed and the previous configuration is in use; the log and "
            "/statusz name file, line and field.",
            (series("config_problem"), _NODE),
            (("in use", "green"), ("refused", "red")),
        ),
        states(
            "Mode and safe state",
            "safe state: the agent has no data, and knobs have the values that 'safe_state' in the "
            "configuration selects.",
            (
                f"max by ({NODE}) (({series('safe_state')} == 1) * 2 or ignoring (mode) "
                f"{series('mode', equal('mode', 'enforce'))} or ignoring (mode) "
                f"{series('safe_state')} * 0)",
                _NODE,
            ),
            (("observe", "blue"), ("enforce", "green"), ("safe state", "red")),
        ),
    ]


def links() -> list[Builder[Panel]]:
    """Return the panels of shaped links."""
    return [
        graph(
            "Links: traffic by tier",
            "Bytes per second of system, latency-sensitive and best-effort work. Dashed: the "
            "ceiling of best-effort work.",
            "Bps",
            (rate("link_bytes_total"), _TIER),
            (
                series("link_ceiling_bytes_per_second"),
                "{{instance}} {{device}} {{direction}} ceiling",
            ),
            dashed="/ ceiling$/",
        ),
        graph(
            "Links: backlog",
            "Bytes that are queued in each tier.",
            "bytes",
            (series("link_backlog_bytes"), _TIER),
        ),
        graph(
            "Links: packets dropped",
            "Per second and tier.",
            "pps",
            (rate("link_drops_total"), _TIER),
        ),
        graph(
            "Links that are not shaped",
            "Configured links that the agent does not shape, with the reason; the value is 1.",
            "none",
            (series("link_problem"), "{{instance}} {{device}}: {{reason}}"),
        ),
    ]


def resctrl() -> list[Builder[Panel]]:
    """Return the panels of caches, memory bandwidth and shared cores."""
    return [
        graph(
            "Cache ways of best-effort work",
            "Ways of the last-level cache that the control group of best-effort work may fill, by "
            "cache.",
            "none",
            (series("cache_ways"), "{{instance}} {{group}} {{domain}}"),
        ),
        graph(
            "Memory bandwidth limit of best-effort work",
            "The MB value in schemata: percent on Intel, multiples of 1/8 GB/s on AMD, MB/s if "
            "resctrl is mounted with mba_MBps.",
            "none",
            (series("memory_bandwidth_limit"), "{{instance}} {{group}} {{domain}}"),
        ),
        graph(
            "Last-level cache occupancy",
            "Bytes, the ten largest workloads.",
            "bytes",
            (f"topk(10, {series('workload_llc_occupancy_bytes')})", "{{instance}} {{workload}}"),
        ),
        graph(
            "Memory bandwidth used",
            "Bytes per second, the ten largest workloads.",
            "Bps",
            (
                f"topk(10, {rate('workload_memory_bandwidth_bytes_total')})",
                "{{instance}} {{workload}}",
            ),
        ),
        states(
            "Control group of best-effort work",
            "Whether the control group exists; only with resctrl mounted and in mode enforce.",
            (
                f"max without (reason) ({series('resctrl_group_present')})",
                "{{instance}} {{group}}",
            ),
            (("missing", "red"), ("present", "green")),
        ),
        graph(
            "Tasks in the control group and elsewhere",
            "in the group: tasks of best-effort work in the control group. elsewhere: tasks of "
            "best-effort work that another program put into another group; they stay there.",
            "none",
            (series("resctrl_tasks"), "{{instance}} in the group"),
            (series("resctrl_foreign_tasks"), "{{instance}} elsewhere"),
        ),
        graph(
            "Cores shared with services",
            "Share of the services' running time with best-effort work on the same core. With "
            "core-scheduling cookies it is 0.",
            "percentunit",
            (series("core_overlap_ratio"), _NODE),
        ),
        graph(
            "Cycles per instruction",
            "The ten workloads with the most cycles per instruction, on hosts with hardware "
            "counters.",
            "none",
            (
                f"topk(10, {rate('workload_cycles_total')} / "
                f"{rate('workload_instructions_total')})",
                "{{instance}} {{workload}}",
            ),
        ),
    ]
