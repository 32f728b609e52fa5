# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How the agents themselves fare, and what hardware and links do."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from tools.dashboard.panels import NODE, equal, graph, rate, series, states

__all__ = ("health", "links", "resctrl")

_NODE = "{{instance}}"
_TIER = "{{instance}} {{device}} {{direction}} {{tier}}"
_OFF_ON = (("off", "red"), ("on", "green"))


def health() -> list[Builder[Panel]]:
    """Ticks, data, probes and cost."""
    missed = rate("missed_context_switches_total")
    return [
        graph(
            "Duration of a tick",
            "Half of the last 600 ticks took less than p50, 99 % less than p99. A tick is due "
            "every 200 ms unless configured otherwise.",
            "s",
            (series("tick_duration_recent_seconds", 'quantile="0.5"'), "{{instance}} p50"),
            (series("tick_duration_recent_seconds", 'quantile="0.99"'), "{{instance}} p99"),
        ),
        graph(
            "Ticks that went wrong",
            "Share of ticks that took longer than their period (overrun), or that were abandoned "
            "because of an error in the agent (failed: everything was restored; read its log).",
            "percentunit",
            (f"{rate('tick_overruns_total')} / {rate('ticks_total')}", "{{instance}} overrun"),
            (f"{rate('tick_failures_total')} / {rate('ticks_total')}", "{{instance}} failed"),
        ),
        graph(
            "Age of the data",
            "Time since the newest event that the probe saw. A busy node has one in every "
            "millisecond.",
            "s",
            (series("data_age_seconds"), _NODE),
        ),
        graph(
            "Ticks per second",
            "5 with the default tick. 0: the loop stands still.",
            "none",
            (rate("ticks_total"), _NODE),
        ),
        graph(
            "CPU of the agent",
            "CPUs of all its processes, with the probes' programs as far as the kernel counts "
            "them. Above the budget (dashed) it sheds detail.",
            "none",
            (series("agent_used_cpus"), _NODE),
            (f"max({series('budget_cpus')})", "budget"),
            dashed="/^budget$/",
        ),
        graph(
            "Memory of the agent",
            "Sum of PSS over its processes. Above the budget (dashed) it warns.",
            "bytes",
            (series("agent_pss_bytes"), _NODE),
            (f"max({series('budget_bytes')})", "budget"),
            dashed="/^budget$/",
        ),
        states(
            "Probes",
            "on: loaded. off: it could not be loaded; 'sweetpoint doctor' on the node says why. "
            "Without 'sched' nothing can be steered.",
            (f"min without (reason) ({series('probe_up')})", "{{instance}} {{probe}}"),
            _OFF_ON,
        ),
        states(
            "Detail that the agent does without",
            "It is over its CPU budget and measures less: counters first, then blame, then it "
            "samples.",
            (series("detail_shed"), "{{instance}} {{detail}}"),
            (("measured", "green"), ("shed", "orange")),
        ),
        graph(
            "Context switches that the kernel did not tell of",
            "Share of all. It stands still on a sound host; in nested virtual machines some are "
            "lost, and with them the waits before them.",
            "percentunit",
            (f"{missed} / ({missed} + {rate('context_switches_total')})", _NODE),
        ),
        graph(
            "Time that the probes' programs take",
            "Seconds per second; only while kernel.bpf_stats_enabled is 1.",
            "none",
            (rate("probe_run_seconds_total"), "{{instance}} {{probe}}"),
        ),
        states(
            "Configuration",
            "refused: a reload was not taken and the configuration from before is in use; the log "
            "and /statusz name file, line and field.",
            (series("config_problem"), _NODE),
            (("in use", "green"), ("refused", "red")),
        ),
        states(
            "Mode and safe state",
            "In the safe state there is no data to act on: knobs are as 'safe_state' says.",
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
    """Links that are shaped."""
    return [
        graph(
            "Links: what each tier carries",
            "Bytes per second of system, latency-sensitive and best-effort work. Dashed: what "
            "best-effort work may use at most.",
            "Bps",
            (rate("link_bytes_total"), _TIER),
            (
                series("link_ceiling_bytes_per_second"),
                "{{instance}} {{device}} {{direction}} ceiling",
            ),
            dashed="/ ceiling$/",
        ),
        graph(
            "Links: bytes that wait",
            "Backlog of each tier now.",
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
            "1 for each, with the reason.",
            "none",
            (series("link_problem"), "{{instance}} {{device}}: {{reason}}"),
        ),
    ]


def resctrl() -> list[Builder[Panel]]:
    """Caches, memory bandwidth and shared cores."""
    return [
        graph(
            "Cache ways of best-effort work",
            "Ways of the last-level cache that its control group may fill, by cache.",
            "none",
            (series("cache_ways"), "{{instance}} {{group}} {{domain}}"),
        ),
        graph(
            "Memory bandwidth limit of best-effort work",
            "The MB value in schemata: percent on Intel, multiples of 1/8 GB/s on AMD, MB/s where "
            "resctrl is mounted with mba_MBps.",
            "none",
            (series("memory_bandwidth_limit"), "{{instance}} {{group}} {{domain}}"),
        ),
        graph(
            "Last-level cache held",
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
            "Where resctrl is mounted and the mode is enforce.",
            (
                f"max without (reason) ({series('resctrl_group_present')})",
                "{{instance}} {{group}}",
            ),
            (("missing", "red"), ("present", "green")),
        ),
        graph(
            "Tasks in that group, and tasks of others",
            "in the group: tasks of best-effort work. elsewhere: those that somebody else put into "
            "another group; they stay there.",
            "none",
            (series("resctrl_tasks"), "{{instance}} in the group"),
            (series("resctrl_foreign_tasks"), "{{instance}} elsewhere"),
        ),
        graph(
            "Cores shared with services",
            "Share of the services' running time with best-effort work on the same core. Cookies "
            "bring it to 0.",
            "percentunit",
            (series("core_overlap_ratio"), _NODE),
        ),
        graph(
            "Cycles per instruction",
            "Of the ten workloads with most, where the host has hardware counters.",
            "none",
            (
                f"topk(10, {rate('workload_cycles_total')} / "
                f"{rate('workload_instructions_total')})",
                "{{instance}} {{workload}}",
            ),
        ),
    ]
