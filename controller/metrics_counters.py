# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The perf counters of workloads as Prometheus families."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from controller.report import TickReport

__all__ = ("perf_counters",)

_FAMILIES = (
    ("cycles", "CPU cycles"),
    ("instructions", "instructions"),
    ("llc_misses", "misses of the last-level cache"),
    ("llc_references", "references to the last-level cache"),
    ("stalled_cycles", "cycles in which the CPU was stalled"),
)


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
