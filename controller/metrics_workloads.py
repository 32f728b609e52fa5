# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who runs here and who makes whom wait, as Prometheus families."""

from collections.abc import Iterator
from heapq import nlargest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.metrics_rows import filled
from controller.model import Blame, CgroupId
from controller.report import TickReport
from controller.units import NS_PER_SEC

__all__ = ("workload_families",)

# A thousand workloads make tens of thousands of pairs, and nearly all the wait is in a few.
_TOP_PAIRS = 50


def workload_families(report: TickReport) -> Iterator[Metric]:
    """Yield what joins the figures of workloads with their class, and the top pairs of blame."""
    info = GaugeMetricFamily(
        "sweetpoint_workload_info",
        "1 for each workload, with what it is.",
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
        f"Time that the victim waited for a CPU because the culprit ran: the {_TOP_PAIRS} pairs "
        "with most of it. A pair that is quiet for a minute leaves and begins at zero again.",
        labels=["victim", "culprit"],
    )
    for pair in nlargest(_TOP_PAIRS, report.blame, key=lambda each: each.wait_ns):
        victim = names.get(pair.victim)
        if victim is not None:
            pairs.add_metric([victim, _culprit(pair, names)], pair.wait_ns / NS_PER_SEC)
    yield pairs


def _culprit(pair: Blame, names: dict[CgroupId, str]) -> str:
    if pair.culprit is not None:
        return names.get(pair.culprit, "unknown")
    return "system" if pair.known else "unknown"
