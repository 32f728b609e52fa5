# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""In Prometheus' words: services' own figures, and what resctrl counts for workloads."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.metrics_rows import filled, labelled_samples
from controller.report import MonitorState, TickReport
from controller.units import NS_PER_SEC

__all__ = ("cache_use", "service_levels")


def service_levels(report: TickReport) -> Iterator[Metric]:
    """Yield the families that tell of the figures and of their sources."""
    labels = ["service", "source"]
    seconds = GaugeMetricFamily(
        "sweetpoint_service_level_seconds",
        "A service's own figure, where it is a time; no series while there is none.",
        labels=labels,
    )
    value = GaugeMetricFamily(
        "sweetpoint_service_level_value",
        "A service's own figure, where it is no time; no series while there is none.",
        labels=labels,
    )
    age = GaugeMetricFamily(
        "sweetpoint_service_level_age_seconds",
        "Time since a service's source last answered.",
        labels=labels,
    )
    errors = CounterMetricFamily(
        "sweetpoint_service_level_errors",
        "Questions that a service's source did not answer, and pushes that were no number.",
        labels=[*labels, "reason"],
    )
    for state in report.services:
        key = [state.service, state.kind]
        if state.value is not None and state.is_time:
            seconds.add_metric(key, state.value / NS_PER_SEC)
        elif state.value is not None:
            value.add_metric(key, state.value)
        if state.age_ns is not None:
            age.add_metric(key, state.age_ns / NS_PER_SEC)
        for reason, count in state.errors.items():
            if count:
                errors.add_metric([*key, reason], count)
    refused = CounterMetricFamily(
        "sweetpoint_service_level_refused_pushes",
        "Pushes that no service got, by reason.",
        labels=["reason"],
    )
    for reason, count in report.refused_pushes.items():
        if count:
            refused.add_metric([reason], count)
    yield from (seconds, value, age, errors, refused)


def cache_use(report: TickReport) -> Iterator[Metric]:
    """Yield the families that tell of occupancy, bandwidth and the groups that count them."""
    samples = labelled_samples(report)
    occupancy = GaugeMetricFamily(
        "sweetpoint_workload_llc_occupancy_bytes",
        "Bytes of a workload in the last-level caches; no series where they are not counted.",
        labels=["workload"],
    )
    bandwidth = CounterMetricFamily(
        "sweetpoint_workload_memory_bandwidth_bytes",
        "Bytes between a workload's caches and memory; no series where they are not counted.",
        labels=["workload"],
    )
    yield filled(occupancy, ((labels, each.llc_occupancy_bytes) for labels, each in samples))
    yield filled(bandwidth, ((labels, each.memory_bandwidth_bytes) for labels, each in samples))
    if report.monitor is not None:
        yield from _monitor(report.monitor)


def _monitor(state: MonitorState) -> Iterator[Metric]:
    for what, text, value in (
        ("groups", "Monitoring groups of ours.", state.groups),
        ("adopted_groups", "Groups of others that hold one workload.", state.adopted),
        ("without_room", "Workloads for which there is no RMID.", state.without_room),
        ("foreign_tasks", "Tasks that somebody else watches.", state.elsewhere),
    ):
        yield GaugeMetricFamily(f"sweetpoint_resctrl_monitor_{what}", text, value=value)
    yield CounterMetricFamily(
        "sweetpoint_resctrl_monitor_errors",
        "Readings that the kernel refused.",
        value=state.errors,
    )
    up = GaugeMetricFamily(
        "sweetpoint_resctrl_monitor_up", "1 while nothing is wrong with it.", labels=["reason"]
    )
    up.add_metric([state.problem], not state.problem)
    yield up
