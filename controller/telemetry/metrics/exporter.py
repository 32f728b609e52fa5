# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus exporter: renders the latest report at every scrape.

A series therefore exists exactly as long as the object that it describes. All values are in base
units: seconds, bytes, ratios, CPUs.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.core.decision import LoopReport
from controller.core.model import Knob
from controller.core.units import NS_PER_SEC
from controller.telemetry.metrics.agent import agent_families, counter_families
from controller.telemetry.metrics.knobs import (
    control_group,
    core_scheduling,
    io_classes,
    knob_families,
    oom_order,
)
from controller.telemetry.metrics.kubernetes import kube_families
from controller.telemetry.metrics.learned import learned_families
from controller.telemetry.metrics.text import Labels, filled, labelled_samples, page, seconds
from controller.telemetry.metrics.workloads import (
    cache_use,
    cpu_times,
    perf_counters,
    service_levels,
    workload_families,
)
from controller.telemetry.report import PublishedState, TickReport

__all__ = ("Exporter",)

_LOOP = ("service", "indicator", "channel")
_CHANNEL = ("channel",)
_DIRECTION = ("workload", "direction")
_TIER = ("device", "direction", "tier")


class Exporter:
    """Renders *published* as Prometheus text."""

    def __init__(self, published: PublishedState) -> None:
        self._published = published

    def render(self) -> bytes:
        """Return the text of a scrape."""
        return page(self.collect())

    def collect(self) -> Iterator[Metric]:
        """Yield all families, as a collector of prometheus_client does."""
        report = self._published.report
        if report is None:
            return
        # After one tick that takes too long the page is made without further waits.
        yields = True
        for family in self._families(report):
            yield family
            # With a thousand workloads a scrape takes 40 ms, and would delay a tick by as much: at
            # every system call of the tick another thread may take the interpreter for 5 ms.
            yields = yields and self._published.yield_to_tick()

    def _families(self, report: TickReport) -> Iterator[Metric]:
        yield from _loops(report)
        yield from learned_families(report)
        yield from _channels(report)
        yield from knob_families(report)
        yield from workload_families(report)
        yield from _network(report)
        yield from cpu_times(report)
        yield from perf_counters(report)
        yield from _links(report)
        yield from control_group(report.control_group)
        yield from io_classes(report.io_classes)
        yield from _pressure(report)
        yield from service_levels(report)
        yield from cache_use(report)
        yield from core_scheduling(report.cores)
        yield from oom_order(report.oom)
        yield from kube_families(report.cluster)
        yield from counter_families(self._published)
        yield from agent_families(report)


def _loops(report: TickReport) -> Iterator[Metric]:
    def value(loop: LoopReport) -> float | None:
        return None if loop.value is None else loop.value / _scale(loop)

    columns: tuple[tuple[str, str, Callable[[LoopReport], float | None]], ...] = (
        ("indicator_value", "Value of a service's indicator, in seconds or as a ratio.", value),
        (
            "indicator_sweet_point",
            "Sweet point of the indicator, in its unit: the value that it should not exceed.",
            lambda loop: None if loop.sweet_point is None else loop.sweet_point / _scale(loop),
        ),
        (
            "loop_deviation",
            "Deviation from the sweet point: 0 at the sweet point, 1 at the tolerance.",
            lambda loop: loop.deviation,
        ),
        (
            "loop_deviation_filtered",
            "Deviation after the loop's filter.",
            lambda loop: loop.filtered_deviation,
        ),
        (
            "loop_demand_ratio",
            "Demand of this loop to squeeze best-effort work, 0 to 1.",
            lambda loop: loop.demand,
        ),
        (
            "loop_selected",
            "1 for the loop that determines the demand of its channel.",
            lambda loop: float(loop.selected),
        ),
    )
    loops = [
        ({"service": each.service, "indicator": each.indicator, "channel": each.channel}, each)
        for each in report.plan.loops
    ]
    for name, text, column in columns:
        family = GaugeMetricFamily(f"sweetpoint_{name}", text, labels=_LOOP)
        yield filled(family, ((labels, column(each)) for labels, each in loops))
    status = GaugeMetricFamily(
        "sweetpoint_indicator_status",
        "1 for the status of the indicator: fresh, idle, stale, lost, implausible, "
        "or off without a source.",
        labels=[*_LOOP, "status"],
    )
    filled(status, (({**labels, "status": each.status}, 1) for labels, each in loops))
    for off in report.plan.off:
        status.add_metric([off.service, off.indicator, off.channel, "off"], 1)
    yield status


def _scale(loop: LoopReport) -> float:
    return NS_PER_SEC if loop.is_time else 1.0


def _channels(report: TickReport) -> Iterator[Metric]:
    wanted = GaugeMetricFamily(
        "sweetpoint_channel_demand_wanted_ratio",
        "Demand of the selected loop of the channel.",
        labels=_CHANNEL,
    )
    applied = GaugeMetricFamily(
        "sweetpoint_channel_demand_ratio",
        "Demand of the channel after limits and rate limiting.",
        labels=_CHANNEL,
    )
    state = GaugeMetricFamily(
        "sweetpoint_channel_state",
        "1 for the state of the channel.",
        labels=[*_CHANNEL, "state"],
    )
    for demand in report.plan.demands:
        wanted.add_metric([demand.channel], demand.wanted)
        applied.add_metric([demand.channel], demand.applied)
        state.add_metric([demand.channel, demand.state], 1)
    yield from (wanted, applied, state)
    for name, text, cpus in (
        (
            "ceiling",
            "Upper limit of the CPUs for best-effort work.",
            report.plan.quota_ceiling_cpus,
        ),
        (
            "granted",
            "CPUs that best-effort workloads with a quota may use, as read back.",
            report.in_force.cpus,
        ),
    ):
        family = GaugeMetricFamily(f"sweetpoint_best_effort_{name}_cpus", text)
        if cpus is not None:
            family.add_metric([], cpus)
        yield family


def _network(report: TickReport) -> Iterator[Metric]:
    samples = labelled_samples(report)
    counts: list[tuple[Labels, int | None, int | None]] = []
    for labels, each in samples:
        sent, received = ({**labels, "direction": way} for way in ("transmit", "receive"))
        counts.append((sent, each.tx_bytes, each.tx_packets))
        counts.append((received, each.rx_bytes, each.rx_packets))
    octets = CounterMetricFamily(
        "sweetpoint_workload_network_bytes",
        "IP bytes of a workload's sockets; no series where they cannot be distinguished.",
        labels=_DIRECTION,
    )
    yield filled(octets, ((labels, count) for labels, count, _ in counts))
    packets = CounterMetricFamily(
        "sweetpoint_workload_network_packets",
        "IP packets of a workload's sockets, before segmentation offload.",
        labels=_DIRECTION,
    )
    yield filled(packets, ((labels, count) for labels, _, count in counts))
    source = GaugeMetricFamily(
        "sweetpoint_workload_network_source",
        "1 for the source of a workload's bytes: its cgroup or its network namespace.",
        labels=["workload", "source"],
    )
    by_netns = report.measured_by_netns
    yield filled(
        source,
        (
            ({**labels, "source": "netns" if each.cgroup in by_netns else "cgroup"}, 1)
            for labels, each in samples
            if each.tx_bytes is not None
        ),
    )


def _links(report: TickReport) -> Iterator[Metric]:
    families: tuple[CounterMetricFamily | GaugeMetricFamily, ...] = (
        CounterMetricFamily("sweetpoint_link_bytes", "Bytes carried by a tier.", labels=_TIER),
        CounterMetricFamily("sweetpoint_link_packets", "Packets carried by a tier.", labels=_TIER),
        CounterMetricFamily("sweetpoint_link_drops", "Packets dropped by a tier.", labels=_TIER),
        GaugeMetricFamily(
            "sweetpoint_link_backlog_bytes", "Bytes queued in a tier now.", labels=_TIER
        ),
    )
    for link, ingress, tier, *numbers in report.links:
        for family, number in zip(families, numbers, strict=True):
            family.add_metric([link.path, "ingress" if ingress else "egress", tier], number)
    yield from families
    ceiling = GaugeMetricFamily(
        "sweetpoint_link_ceiling_bytes_per_second",
        "Upper limit of the best-effort tier of a link, as read back.",
        labels=["device", "direction"],
    )
    for target, knob, value, _ in report.knobs:
        if knob is Knob.TC_CEILING:
            for direction, rate in zip(("egress", "ingress"), value.split(), strict=True):
                if rate != "0":
                    ceiling.add_metric([target.path, direction], int(rate))
    yield ceiling
    problems = GaugeMetricFamily(
        "sweetpoint_link_problem",
        "1 for a link that is not shaped, with the reason.",
        labels=["device", "reason"],
    )
    for device, reason in report.link_problems.items():
        problems.add_metric([device, reason], 1)
    yield problems


def _pressure(report: TickReport) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "sweetpoint_workload_pressure_seconds",
        "PSI some: time in which at least one task of a service waited for the resource.",
        labels=["workload", "resource"],
    )
    stalls = (
        ({**labels, "resource": resource}, seconds(stall_ns))
        for labels, each in labelled_samples(report)
        for resource, stall_ns in (
            ("cpu", each.psi_cpu_some_ns),
            ("memory", each.psi_memory_some_ns),
            ("io", each.psi_io_some_ns),
        )
        if stall_ns is not None
    )
    yield filled(family, stalls)
    host = CounterMetricFamily(
        "sweetpoint_host_pressure_seconds",
        "PSI some: time in which at least one task of this host waited for the resource.",
        labels=["resource"],
    )
    for resource, stall_ns in report.host_pressure_ns.items():
        host.add_metric([resource], stall_ns / NS_PER_SEC)
    yield host
