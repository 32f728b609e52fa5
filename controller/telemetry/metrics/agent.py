# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How the agent itself fares, as Prometheus families: ticks, writes, reloads, probes, cost.

What the agent itself costs, as Prometheus families.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.core.model import EvictionResult
from controller.core.units import NS_PER_SEC
from controller.telemetry.report import AgentCost, PublishedState, TickReport

__all__ = (
    "agent_cost",
    "agent_families",
    "board_families",
)


def agent_cost(cost: AgentCost | None) -> Iterator[Metric]:
    """Yield the families of *cost*, at most ten seconds old; none before the first look."""
    if cost is None:
        return
    yield CounterMetricFamily(
        "sweetpoint_agent_cpu_seconds", "CPU time of all agent processes.", value=cost.cpu_s
    )
    for name, text, value in (
        ("agent_pss_bytes", "Memory of all agent processes.", cost.pss_bytes),
        (
            "agent_used_cpus",
            "CPUs used in the last ten seconds, those of the probes included as far as known.",
            cost.used_cpus,
        ),
        ("budget_cpus", "CPUs that the agent may use before it sheds detail.", cost.budget_cpus),
        ("budget_bytes", "Memory above which the agent warns.", cost.budget_bytes),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"sweetpoint_{name}", text, value)
    shed = GaugeMetricFamily(
        "sweetpoint_detail_shed", "1 while the agent does without it.", labels=["detail"]
    )
    for detail in cost.details:
        shed.add_metric([detail], detail in cost.without)
    yield shed
    runs = CounterMetricFamily(
        "sweetpoint_probe_runs",
        "Runs of the probe's programs; only while kernel.bpf_stats_enabled is 1.",
        labels=["probe"],
    )
    seconds = CounterMetricFamily(
        "sweetpoint_probe_run_seconds", "Time spent in these runs.", labels=["probe"]
    )
    for probe, (count, time_ns) in cost.probes.items():
        runs.add_metric([probe], count)
        seconds.add_metric([probe], time_ns / NS_PER_SEC)
    yield from (runs, seconds)


_PROBES = ("net", "sched")
# A counter that appears with its first event looks to Prometheus as if nothing had happened, so
# every result is there from the start, and of writes as soon as the knob was written at all.
_RELOADS = ("applied", "failed")
_WRITES = ("applied", "foreign", "gone", "refused")


def board_families(board: PublishedState) -> Iterator[Metric]:
    """Yield what is counted over all ticks."""
    decisions = CounterMetricFamily(
        "sweetpoint_channel_ticks",
        "Ticks by the state that a channel was in.",
        labels=["channel", "state"],
    )
    for (channel, state), count in sorted(board.decisions.items()):
        decisions.add_metric([channel, state], count)
    yield decisions
    writes = CounterMetricFamily(
        "sweetpoint_knob_writes", "Writes by knob and result.", labels=["knob", "result"]
    )
    counts = board.writes.copy()
    for knob in sorted({knob for knob, _ in counts}):
        for result in _WRITES:
            writes.add_metric([knob, result], counts.get((knob, result), 0))
    yield writes
    evictions = CounterMetricFamily(
        "sweetpoint_evictions",
        "Evictions by the channel that they were for, and by what became of them.",
        labels=["reason", "result"],
    )
    evicted = board.evictions.copy()
    for reason in sorted({channel for channel, _ in (*board.decisions, *evicted)}):
        for eviction_result in EvictionResult:
            evictions.add_metric(
                [reason, eviction_result], evicted.get((reason, eviction_result), 0)
            )
    yield evictions
    reloads = CounterMetricFamily(
        "sweetpoint_config_reloads", "Configuration reloads by result.", labels=["result"]
    )
    for result in _RELOADS:
        reloads.add_metric([result], board.reloads.get(result, 0))
    yield reloads
    recent = GaugeMetricFamily(
        "sweetpoint_tick_duration_recent_seconds",
        "Duration that half of the last 600 ticks, or 99 % of them, did not exceed.",
        labels=["quantile"],
    )
    for quantile in (0.5, 0.99):
        duration_ns = board.duration_ns(quantile)
        if duration_ns is not None:
            recent.add_metric([f"{quantile:g}"], duration_ns / NS_PER_SEC)
    yield recent


def agent_families(report: TickReport) -> Iterator[Metric]:
    """Yield the state of loop and probes as of the last tick."""
    info = GaugeMetricFamily("sweetpoint_mode", "1 for the mode.", labels=["mode"])
    info.add_metric([report.mode], 1)
    yield info
    for name, text, value in (
        ("tick_duration_seconds", "Duration of the last tick.", report.tick_ns / NS_PER_SEC),
        ("safe_state", "1 while the safe state is held.", float(report.plan.safe)),
        (
            "config_problem",
            "1 while the configuration in use is not the one that was last read.",
            float(bool(report.config_problem)),
        ),
        ("workloads", "Workloads on this host.", float(len(report.workloads))),
    ):
        yield GaugeMetricFamily(f"sweetpoint_{name}", text, value=value)
    if report.age_ns is not None:
        yield GaugeMetricFamily(
            "sweetpoint_data_age_seconds", "Age of the newest event.", report.age_ns / NS_PER_SEC
        )
    for name, text, count in (
        ("ticks", "Ticks.", report.ticks),
        ("tick_overruns", "Ticks that took longer than their period.", report.overruns),
        ("tick_failures", "Ticks abandoned because of an error in the agent.", report.failed_ticks),
        ("context_switches", "Context switches that the probe saw.", report.switches),
        (
            "missed_context_switches",
            "Context switches that the kernel did not tell of; the waits before them are lost.",
            report.missed_switches,
        ),
    ):
        yield CounterMetricFamily(f"sweetpoint_{name}", text, value=count)
    probes = GaugeMetricFamily(
        "sweetpoint_probe_up", "1 if the probe is loaded.", labels=["probe", "reason"]
    )
    for probe in sorted({*_PROBES, *report.probe_problems}):
        problem = report.probe_problems.get(probe)
        probes.add_metric([probe, problem or ""], problem is None)
    yield probes
    fallbacks = GaugeMetricFamily(
        "sweetpoint_probe_fallback",
        "1 for a probe that measures in its second-best way.",
        labels=["probe", "reason"],
    )
    for probe, reason in report.probe_fallbacks.items():
        fallbacks.add_metric([probe, reason], 1)
    yield fallbacks
    yield from agent_cost(report.cost)
