# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time, waits and perf counters of workloads as Prometheus families."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from controller.report import TickReport
from controller.units import NS_PER_SEC

__all__ = ("cpu_times", "perf_counters")

_TIMES = (
    ("oncpu_ns", "oncpu", "Time that a workload's tasks ran."),
    ("wait_total_ns", "wait", "Time that they waited for a CPU, throttled time included."),
    ("wait_inflicted_ns", "wait_inflicted", "The part of it in which others ran; services only."),
)

_FAMILIES = (
    ("cycles", "CPU cycles"),
    ("instructions", "instructions"),
    ("llc_misses", "misses of the last-level cache"),
    ("llc_references", "references to the last-level cache"),
    ("stalled_cycles", "cycles in which the CPU was stalled"),
)


def cpu_times(report: TickReport) -> Iterator[Metric]:
    """Yield what the sched probe counts for every workload, in seconds."""
    names = {workload.cgroup: workload.name for workload in report.workloads}
    for field, name, text in _TIMES:
        family = CounterMetricFamily(
            f"sweetpoint_workload_{name}_seconds", text, labels=["workload"]
        )
        for sample in report.samples:
            time_ns = getattr(sample, field)
            if time_ns is not None:
                family.add_metric([names.get(sample.cgroup, "")], time_ns / NS_PER_SEC)
        yield family


def perf_counters(report: TickReport) -> Iterator[Metric]:
    """Yield a family for each counter that the host counts; others have none."""
    names = {workload.cgroup: workload.name for workload in report.workloads}
    for field, what in _FAMILIES:
        family = CounterMetricFamily(
            f"sweetpoint_workload_{field}",
            f"A workload's {what}, by the configured source; up to a second old.",
            labels=["workload"],
        )
        for sample in report.samples:
            count = getattr(sample, field)
            if count is not None:
                family.add_metric([names.get(sample.cgroup, "")], count)
        if family.samples:
            yield family
