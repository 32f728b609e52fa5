# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of workloads: classes, blame, CPU times, perf counters, figures, resctrl."""

from collections.abc import Iterator
from heapq import nlargest
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.core.model import Blame, CgroupId
from controller.core.units import NS_PER_SEC
from controller.reconcilers.resctrl.monitored import MonitorState
from controller.telemetry.metrics.text import filled, labelled_samples, seconds
from controller.telemetry.report import TickReport

__all__ = (
    "cache_use",
    "cpu_times",
    "perf_counters",
    "service_levels",
    "workload_families",
)

# A thousand workloads make tens of thousands of pairs; nearly all of the wait is in a few of them.
_TOP_PAIRS = 50


def workload_families(report: TickReport) -> Iterator[Metric]:
    """Yield the family that joins workloads with their classes, and the top pairs of blame."""
    info = GaugeMetricFamily(
        "sweetpoint_workload_info",
        "1 for each workload, with its class, service and profile.",
        labels=["workload", "class", "service", "profile"],
    )
    yield filled(
        info,
        (
            (
                {
                    "workload": each.name,
                    "class": each.qos,
                    "service": each.service,
                    "profile": each.profile,
                },
                1,
            )
            for each in report.workloads
        ),
    )
    names = {workload.cgroup: workload.name for workload in report.workloads}
    pairs = CounterMetricFamily(
        "sweetpoint_blame_wait_seconds",
        f"Time that the victim waited for a CPU because the culprit ran; the {_TOP_PAIRS} worst "
        "pairs, each dropped a minute after its last blame.",
        labels=["victim", "culprit"],
    )
    for pair in nlargest(_TOP_PAIRS, report.blame, key=lambda each: each.wait_ns):
        victim = names.get(pair.victim)
        if victim is not None:
            pairs.add_metric([victim, _culprit(pair, names)], pair.wait_ns / NS_PER_SEC)
    yield pairs
    parts = GaugeMetricFamily(
        "sweetpoint_hurt_ratio",
        "Part (0 to 1) of what hurts the service now, whoever it is; the six largest of a service.",
        labels=["service", "channel", "kind", "culprit"],
    )
    for cause in report.plan.causes:
        for each in cause.parts:
            parts.add_metric([cause.service, cause.channel, each.kind, each.name], each.share)
    yield parts
    slow = GaugeMetricFamily(
        "sweetpoint_service_slow",
        "1 while the service is above a sweet point, by what makes it slow; name is the largest "
        "of that kind.",
        labels=["service", "because", "name"],
    )
    for found in report.plan.slow:
        slow.add_metric([found.service, found.because, found.name], 1)
    yield slow


def _culprit(pair: Blame, names: dict[CgroupId, str]) -> str:
    if pair.culprit is not None:
        return names.get(pair.culprit, "unknown")
    return "system" if pair.known else "unknown"


_TIMES = (
    ("oncpu_ns", "oncpu", "Time that a workload's tasks ran."),
    (
        "wait_total_ns",
        "wait",
        "Time that a workload's tasks waited for a CPU, including throttled time.",
    ),
    (
        "wait_inflicted_ns",
        "wait_inflicted",
        "The part of the wait in which other workloads ran; services only.",
    ),
    (
        "wait_host_ns",
        "wait_host",
        "The part of the wait in which the CPU stood still or woke up late; services only.",
    ),
)

_FAMILIES = (
    ("cycles", "CPU cycles"),
    ("instructions", "instructions"),
    ("llc_misses", "misses of the last-level cache"),
    ("llc_references", "references to the last-level cache"),
    ("stalled_cycles", "cycles in which the CPU was stalled"),
)


def cpu_times(report: TickReport) -> Iterator[Metric]:
    """Yield the times that the sched probe counts for every workload, in seconds."""
    samples = labelled_samples(report)
    for field, name, text in _TIMES:
        family = CounterMetricFamily(
            f"sweetpoint_workload_{name}_seconds", text, labels=["workload"]
        )
        time_ns = attrgetter(field)
        yield filled(family, ((labels, seconds(time_ns(each))) for labels, each in samples))


def perf_counters(report: TickReport) -> Iterator[Metric]:
    """Yield a family for each perf counter that this host has."""
    samples = labelled_samples(report)
    for field, what in _FAMILIES:
        family = CounterMetricFamily(
            f"sweetpoint_workload_{field}",
            f"A workload's {what}, by the configured source; up to a second old.",
            labels=["workload"],
        )
        count = attrgetter(field)
        if filled(family, ((labels, count(each)) for labels, each in samples)).samples:
            yield family


def service_levels(report: TickReport) -> Iterator[Metric]:
    """Yield the families of the services' own figures and their sources."""
    labels = ["service", "source"]
    seconds = GaugeMetricFamily(
        "sweetpoint_service_level_seconds",
        "Figure reported by a service, if it is a time; no series while there is none.",
        labels=labels,
    )
    value = GaugeMetricFamily(
        "sweetpoint_service_level_value",
        "Figure reported by a service, if it is not a time; no series while there is none.",
        labels=labels,
    )
    age = GaugeMetricFamily(
        "sweetpoint_service_level_age_seconds",
        "Time since the source of a service's figure last answered.",
        labels=labels,
    )
    errors = CounterMetricFamily(
        "sweetpoint_service_level_errors",
        "Failed polls of a source of a service's figure, and pushes without a valid number.",
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
        "Pushes that were not assigned to a service, by reason.",
        labels=["reason"],
    )
    for reason, count in report.refused_pushes.items():
        if count:
            refused.add_metric([reason], count)
    yield from (seconds, value, age, errors, refused)


def cache_use(report: TickReport) -> Iterator[Metric]:
    """Yield the families of cache occupancy, memory bandwidth and their monitoring groups."""
    samples = labelled_samples(report)
    occupancy = GaugeMetricFamily(
        "sweetpoint_workload_llc_occupancy_bytes",
        "Bytes of a workload in the last-level caches; no series if they are not counted.",
        labels=["workload"],
    )
    bandwidth = CounterMetricFamily(
        "sweetpoint_workload_memory_bandwidth_bytes",
        "Bytes between a workload's caches and memory; no series if they are not counted.",
        labels=["workload"],
    )
    yield filled(occupancy, ((labels, each.llc_occupancy_bytes) for labels, each in samples))
    yield filled(bandwidth, ((labels, each.memory_bandwidth_bytes) for labels, each in samples))
    if report.monitor is not None:
        yield from _monitor(report.monitor)


def _monitor(state: MonitorState) -> Iterator[Metric]:
    for what, text, value in (
        ("groups", "Monitoring groups of the agent.", state.groups),
        (
            "adopted_groups",
            "Foreign groups that hold exactly one workload and are used.",
            state.adopted,
        ),
        ("without_room", "Workloads for which no RMID is left.", state.without_room),
        ("foreign_tasks", "Tasks in a monitoring group of another program.", state.elsewhere),
    ):
        yield GaugeMetricFamily(f"sweetpoint_resctrl_monitor_{what}", text, value=value)
    yield CounterMetricFamily(
        "sweetpoint_resctrl_monitor_errors",
        "Readings that the kernel refused.",
        value=state.errors,
    )
    up = GaugeMetricFamily(
        "sweetpoint_resctrl_monitor_up", "1 while resctrl monitoring works.", labels=["reason"]
    )
    up.add_metric([state.problem], not state.problem)
    yield up
