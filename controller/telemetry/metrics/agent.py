# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of the agent itself: ticks, writes, evictions, reloads, probes, cost."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.core.looks import TickReason
from controller.core.model import EvictionResult, Knob, QosClass
from controller.core.units import NS_PER_SEC
from controller.host.sources import Source
from controller.telemetry.report import QUIET, UNFOUNDED, AgentCost, PublishedState, TickReport

__all__ = (
    "agent_cost",
    "agent_families",
    "counter_families",
)


def agent_cost(cost: AgentCost | None) -> Iterator[Metric]:
    """Yield the families of *cost*, at most ten seconds old; none before it was first measured."""
    if cost is None:
        return
    yield CounterMetricFamily(
        "sweetpoint_agent_cpu_seconds", "CPU time of all agent processes.", value=cost.cpu_s
    )
    for name, text, value in (
        ("agent_pss_bytes", "Memory of all agent processes.", cost.pss_bytes),
        (
            "agent_used_cpus",
            "CPUs used in the last ten seconds, including the probes if the kernel counts them, "
            "but not HTTP requests.",
            cost.used_cpus,
        ),
        ("budget_cpus", "CPUs that the agent may use before it sheds detail.", cost.budget_cpus),
        ("budget_bytes", "Memory above which the agent warns.", cost.budget_bytes),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"sweetpoint_{name}", text, value)
    shed = GaugeMetricFamily(
        "sweetpoint_detail_shed",
        "1 while the agent has shed this detail to stay within its CPU budget.",
        labels=["detail"],
    )
    for detail in cost.details:
        shed.add_metric([detail], detail in cost.without)
    yield shed
    runs = CounterMetricFamily(
        "sweetpoint_probe_runs",
        "Runs of the probe's BPF programs; counted only while kernel.bpf_stats_enabled is 1.",
        labels=["probe"],
    )
    seconds = CounterMetricFamily(
        "sweetpoint_probe_run_seconds",
        "Time spent in runs of the probe's BPF programs.",
        labels=["probe"],
    )
    for probe, (count, time_ns) in cost.probes.items():
        runs.add_metric([probe], count)
        seconds.add_metric([probe], time_ns / NS_PER_SEC)
    yield from (runs, seconds)


_PROBES = ("net", "sched")
# Prometheus does not see the first increase of a counter that appears with it. So every result has
# a series from the start; the results of writes have one as soon as the knob was written.
_RELOADS = ("applied", "failed")
_WRITES = ("applied", "foreign", "gone", "refused")


def counter_families(published: PublishedState) -> Iterator[Metric]:
    """Yield the families of the counters over all ticks, and the recent durations of ticks."""
    decisions = CounterMetricFamily(
        "sweetpoint_channel_ticks",
        "Due moments of ticks, also where none was made, by the state of the channel.",
        labels=["channel", "state"],
    )
    for (channel, state), count in sorted(published.decisions.items()):
        decisions.add_metric([channel, state], count)
    yield decisions
    looks = CounterMetricFamily(
        "sweetpoint_looks",
        "Looks by why a tick was made; quiet: due, none needed; woken, pressure: caused by "
        "the kernel; unfounded: so, without a tick.",
        labels=["result"],
    )
    counted = published.looks.copy()
    for found in (QUIET, UNFOUNDED, *TickReason):
        looks.add_metric([found], counted.get(found, 0))
    yield looks
    writes = CounterMetricFamily(
        "sweetpoint_knob_writes", "Writes of knobs by knob and result.", labels=["knob", "result"]
    )
    counts = published.writes.copy()
    for knob in sorted({knob for knob, _ in counts}):
        for result in (*_WRITES, *(("busy",) if knob is Knob.MEMORY_MAX else ())):
            writes.add_metric([knob, result], counts.get((knob, result), 0))
    yield writes
    suffered = CounterMetricFamily(
        "sweetpoint_service_above_sweet_point_seconds",
        "Time in which a service was above its sweet point, by the state of the channel meanwhile; "
        "other: the channel decided for another service.",
        labels=["service", "channel", "state"],
    )
    for labels, time_ns in sorted(published.suffered_ns.copy().items()):
        suffered.add_metric(labels, time_ns / NS_PER_SEC)
    yield suffered
    evictions = CounterMetricFamily(
        "sweetpoint_evictions",
        "Evictions by the channel that caused them and by result.",
        labels=["reason", "result"],
    )
    evicted = published.evictions.copy()
    for reason in sorted({channel for channel, _ in (*published.decisions, *evicted)}):
        for eviction_result in EvictionResult:
            evictions.add_metric(
                [reason, eviction_result], evicted.get((reason, eviction_result), 0)
            )
    yield evictions
    reloads = CounterMetricFamily(
        "sweetpoint_config_reloads", "Configuration reloads by result.", labels=["result"]
    )
    for result in _RELOADS:
        reloads.add_metric([result], published.reloads.get(result, 0))
    yield reloads
    yield _percentiles(
        "sweetpoint_tick_duration_recent_seconds",
        "Median and 99th percentile of the durations of the last 600 ticks.",
        published.duration_ns,
    )
    yield _percentiles(
        "sweetpoint_tick_late_recent_seconds",
        "Median and 99th percentile of the time from when a tick was due to its start, of the last "
        "600 ticks.",
        published.late_ns,
    )


def _percentiles(
    name: str, text: str, quantile_ns: Callable[[float], int | None]
) -> GaugeMetricFamily:
    # "quantile" as a label is reserved for summaries.
    family = GaugeMetricFamily(name, text, labels=["percentile"])
    for percentile in (50, 99):
        value_ns = quantile_ns(percentile / 100)
        if value_ns is not None:
            family.add_metric([str(percentile)], value_ns / NS_PER_SEC)
    return family


def agent_families(report: TickReport) -> Iterator[Metric]:
    """Yield the families of the control loop and the probes as of the last tick."""
    info = GaugeMetricFamily("sweetpoint_mode", "1 for the current mode.", labels=["mode"])
    info.add_metric([report.mode], 1)
    yield info
    for name, text, value in (
        ("tick_duration_seconds", "Duration of the last tick.", report.tick_ns / NS_PER_SEC),
        ("safe_state", "1 in the safe state.", float(report.plan.safe)),
        (
            "config_problem",
            "1 while the last configuration that was read is not in force.",
            float(bool(report.config_problem)),
        ),
        (
            "state_dir_problem",
            "1 while the state directory cannot be written: no knob gets a new value.",
            float(bool(report.state_dir.problem)),
        ),
        ("workloads", "Workloads on this host.", float(len(report.workloads))),
        (
            "left_out_cgroups",
            "Cgroups that match a rule of the configuration and cannot be workloads.",
            float(len(report.left_out)),
        ),
        (
            "missing_cgroups",
            "Cgroups that the configuration names and that do not exist; they are looked for.",
            float(len(report.missing)),
        ),
    ):
        yield GaugeMetricFamily(f"sweetpoint_{name}", text, value=value)
    unmeasured = GaugeMetricFamily(
        "sweetpoint_workloads_unmeasured",
        "Workloads that the sched probe does not measure, or services without a histogram.",
        labels=["class"],
    )
    for qos in QosClass:
        unmeasured.add_metric([qos], report.unmeasured.get(qos, 0))
    yield unmeasured
    if report.age_ns is not None:
        yield GaugeMetricFamily(
            "sweetpoint_data_age_seconds",
            "Age of the newest event of the sched probe.",
            report.age_ns / NS_PER_SEC,
        )
    for name, text, count in (
        ("ticks", "Ticks of the control loop.", report.ticks),
        ("tick_overruns", "Ticks that took longer than their period.", report.overruns),
        ("tick_failures", "Ticks abandoned because of an error in the agent.", report.failed_ticks),
        (
            "state_dir_losses",
            "How often another program removed or replaced the state directory; it was made again.",
            report.state_dir.losses,
        ),
        ("context_switches", "Context switches seen by the sched probe.", report.switches),
        (
            "missed_context_switches",
            "Context switches not reported by the kernel; the waits before them are lost.",
            report.missed_switches,
        ),
        (
            "unknown_oncpu_seconds",
            "Time that tasks ran whose workload is not known.",
            report.unknown_oncpu_ns / NS_PER_SEC,
        ),
    ):
        yield CounterMetricFamily(f"sweetpoint_{name}", text, value=count)
    restarts = CounterMetricFamily(
        "sweetpoint_agent_restarts",
        "Restarts of the agent by its guardian, by the reason of its end.",
        labels=["reason"],
    )
    for reason, times in report.restarts.items():
        restarts.add_metric([reason], times)
    yield restarts
    probes = GaugeMetricFamily(
        "sweetpoint_probe_up", "1 if the probe is loaded.", labels=["probe", "reason"]
    )
    for probe in sorted({*_PROBES, *report.probe_problems}):
        problem = report.probe_problems.get(probe)
        probes.add_metric([probe, problem or ""], problem is None)
    yield probes
    fallbacks = GaugeMetricFamily(
        "sweetpoint_probe_fallback",
        "1 for a probe that uses a fallback, with the reason.",
        labels=["probe", "reason"],
    )
    for probe, reason in report.probe_fallbacks.items():
        fallbacks.add_metric([probe, reason], 1)
    yield fallbacks
    yield _sources(report)
    yield from _pauses(report)
    yield _policies(report)
    yield from _store(report)
    yield from _nri(report)
    yield from agent_cost(report.cost)


def _nri(report: TickReport) -> Iterator[Metric]:
    state = report.doorbell
    if state is None:
        return
    yield GaugeMetricFamily(
        "sweetpoint_nri_connected",
        "1 while the container runtime tells of containers before they run.",
        value=float(not state.problem),
    )
    arrivals = CounterMetricFamily(
        "sweetpoint_nri_arrivals",
        "Pods and containers that the runtime told of, by whether a tick was in time.",
        labels=["result"],
    )
    arrivals.add_metric(["in-time"], state.in_time)
    arrivals.add_metric(["late"], state.late)
    yield arrivals


def _sources(report: TickReport) -> Metric:
    degraded = GaugeMetricFamily(
        "sweetpoint_source_degraded",
        "1 while a source that control rests on is not well; /readyz says why.",
        labels=["source"],
    )
    found = {each.source for each in report.degraded}
    for source in Source:
        degraded.add_metric([source], source in found)
    return degraded


def _pauses(report: TickReport) -> Iterator[Metric]:
    labels = ("scope", "name", "source")
    paused = GaugeMetricFamily(
        "sweetpoint_paused", "1 for a pause that is in force.", labels=labels
    )
    ends = GaugeMetricFamily(
        "sweetpoint_pause_end_timestamp_seconds",
        "Time at which a pause ends, in seconds since the epoch.",
        labels=labels,
    )
    for source, (scope, name, until_s) in report.pauses.entries:
        paused.add_metric([scope, name, source], 1)
        ends.add_metric([scope, name, source], until_s)
    yield from (paused, ends)
    problems = GaugeMetricFamily(
        "sweetpoint_pause_problem",
        "1 for a source of pauses that cannot be used, with the reason.",
        labels=["source", "reason"],
    )
    for source, reason in report.pauses.problems:
        problems.add_metric([source, reason], 1)
    yield problems


def _policies(report: TickReport) -> Metric:
    found = GaugeMetricFamily(
        "sweetpoint_policy_in_force",
        "1 for a policy of the configuration that is in force, 0 for one that is not.",
        labels=["policy"],
    )
    for name in report.policies.known:
        found.add_metric([name], name in report.policies.names)
    return found


def _store(report: TickReport) -> Iterator[Metric]:
    problems = GaugeMetricFamily(
        "sweetpoint_store_problem",
        "1 for a document below data_dir that cannot be read or written, with the reason.",
        labels=["document", "reason"],
    )
    for document, reason in sorted(report.store.problems.items()):
        problems.add_metric([document, reason], 1)
    yield problems
    lost = CounterMetricFamily(
        "sweetpoint_store_lost_writes",
        "Writes of documents below data_dir that were lost.",
        labels=["document"],
    )
    for document, count in sorted(report.store.lost.items()):
        lost.add_metric([document], count)
    yield lost
    if not report.history.enabled:
        return
    yield GaugeMetricFamily(
        "sweetpoint_history_problem",
        "1 while the history on disk cannot be written.",
        value=float(bool(report.history.problem)),
    )
    records = CounterMetricFamily(
        "sweetpoint_history_lost_records",
        "Records of the history that were not stored.",
        labels=["stream"],
    )
    records.add_metric(["moments"], report.history.lost_moments)
    records.add_metric(["snapshots"], report.history.lost_snapshots)
    yield records
    yield CounterMetricFamily(
        "sweetpoint_history_cpu_seconds",
        "CPU time of the thread that writes the history.",
        value=report.history.cpu_s,
    )
    yield CounterMetricFamily(
        "sweetpoint_observed_cut_cpu_seconds",
        "CPU time that enforcing would have taken from best-effort work at most, while observing.",
        value=report.history.cut_cpu_s,
    )
