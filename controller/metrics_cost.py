# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent itself costs, as Prometheus families."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.report import AgentCost
from controller.units import NS_PER_SEC

__all__ = ("agent_cost",)


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
