# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time, waits and perf counters of workloads as Prometheus families."""

from collections.abc import Iterator
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, Metric

from controller.metrics_rows import filled, labelled_samples, seconds
from controller.report import TickReport

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
    samples = labelled_samples(report)
    for field, name, text in _TIMES:
        family = CounterMetricFamily(
            f"sweetpoint_workload_{name}_seconds", text, labels=["workload"]
        )
        time_ns = attrgetter(field)
        yield filled(family, ((labels, seconds(time_ns(each))) for labels, each in samples))


def perf_counters(report: TickReport) -> Iterator[Metric]:
    """Yield a family for each counter that the host counts; others have none."""
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
