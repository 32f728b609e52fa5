# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where the knobs stand, as Prometheus families: as read back, and as the ladders see them."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.control.schemata import parse_bandwidth, parse_masks
from controller.model import Channel, Knob
from controller.report import TickReport

__all__ = ("knob_families",)

_KNOB = ("workload", "knob")
_DOMAIN = ("group", "domain")


def knob_families(report: TickReport) -> Iterator[Metric]:
    """Yield the families; a knob that is not limited has no series, where the unit allows none."""
    names = {workload.cgroup.id: workload.name for workload in report.workloads}
    yield from _workloads(report, names)
    yield from _groups(report)
    yield from _rungs(report)
    yield _overwritten(report)


def _workloads(report: TickReport, names: dict[int, str]) -> Iterator[Metric]:
    quota = GaugeMetricFamily(
        "sweetpoint_quota_applied_cpus", "CPU quota read back; no series without one.", labels=_KNOB
    )
    idle = GaugeMetricFamily(
        "sweetpoint_sched_idle", "1 while cpu.idle is set, as read back.", labels=_KNOB
    )
    memory = GaugeMetricFamily(
        "sweetpoint_memory_high_bytes", "memory.high read back; no series for max.", labels=_KNOB
    )
    weight = GaugeMetricFamily("sweetpoint_io_weight", "io.weight read back.", labels=_KNOB)
    for target, knob, value in report.knobs:
        words = value.split()
        labels = [names.get(target.id, target.path), knob]
        if knob is Knob.CPU_QUOTA and words[0] != "max":
            quota.add_metric(labels, int(words[0]) / int(words[1]))
        elif knob is Knob.SCHED_IDLE:
            idle.add_metric(labels, int(words[0]))
        elif knob is Knob.MEMORY_HIGH and value != "max":
            memory.add_metric(labels, int(value))
        elif knob is Knob.IO_WEIGHT:
            weight.add_metric(labels, int(value))
    yield from (quota, idle, memory, weight)


def _groups(report: TickReport) -> Iterator[Metric]:
    bandwidth = GaugeMetricFamily(
        "sweetpoint_memory_bandwidth_limit",
        "MB value of best-effort's resctrl group, in the unit that schemata has on this host.",
        labels=_DOMAIN,
    )
    ways = GaugeMetricFamily(
        "sweetpoint_cache_ways", "L3 ways of best-effort's resctrl group.", labels=_DOMAIN
    )
    cookie = GaugeMetricFamily(
        "sweetpoint_core_cookie",
        "1 while the group has a core-scheduling cookie.",
        labels=["group"],
    )
    for reading in report.knobs:
        path = reading.target.path
        if reading.knob is Knob.MBA:
            _add_domains(bandwidth, path, parse_bandwidth(reading.value))
        elif reading.knob is Knob.LLC_WAYS:
            masks = parse_masks(reading.value)
            _add_domains(ways, path, {each: mask.bit_count() for each, mask in masks.items()})
        elif reading.knob is Knob.CORE_COOKIE:
            cookie.add_metric([path], float(reading.value != "0"))
    yield from (bandwidth, ways, cookie)


def _add_domains(family: GaugeMetricFamily, group: str, values: dict[int, int]) -> None:
    for domain, value in values.items():
        family.add_metric([group, str(domain)], value)


def _rungs(report: TickReport) -> Iterator[Metric]:
    part = GaugeMetricFamily(
        "sweetpoint_rung_part_ratio",
        "How far a channel's knob is from free (0) to its stop (1).",
        labels=["channel", "knob"],
    )
    usable = GaugeMetricFamily(
        "sweetpoint_rung_usable", "1 if the knob can be moved now.", labels=["channel", "knob"]
    )
    for demand in report.plan.demands:
        if demand.channel is Channel.CPU:
            # Its ladder has this one rung, so the channel's demand is the rung's part.
            part.add_metric([Channel.CPU, Knob.CPU_QUOTA], demand.applied)
    for rung in report.plan.rungs:
        part.add_metric([rung.channel, rung.knob], rung.part)
        usable.add_metric([rung.channel, rung.knob], float(rung.usable))
    yield from (part, usable)


def _overwritten(report: TickReport) -> Metric:
    family = CounterMetricFamily(
        "sweetpoint_knob_overwrites",
        "Values of ours that somebody else replaced.",
        labels=["knob"],
    )
    # There before the first time, or that would not be seen as a change.
    for knob in sorted({reading.knob for reading in report.knobs} | report.overwritten.keys()):
        family.add_metric([knob], report.overwritten.get(knob, 0))
    return family
