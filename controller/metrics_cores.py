# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Core scheduling in Prometheus' words: tasks with cookies, shared cores, idle without effect."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.report import CoreState

__all__ = ("core_scheduling",)


def core_scheduling(state: CoreState) -> Iterator[Metric]:
    """Yield the families that tell of *state*."""
    for name, text, value in (
        ("cookie_tasks", "Tasks with our core-scheduling cookie.", state.carrying),
        ("foreign_tasks", "Best-effort tasks with a cookie of somebody else.", state.foreign),
        (
            "overlap_ratio",
            "Share of the services' running time with best-effort work on the same core.",
            state.overlap_ratio,
        ),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"sweetpoint_core_{name}", text, value)
    changes = CounterMetricFamily(
        "sweetpoint_core_cookie_changes",
        "Tasks that were given our cookie, relieved of it, or could not be.",
        labels=["result"],
    )
    for result, count in (
        ("given", state.given),
        ("cleared", state.cleared),
        ("failed", state.failed),
    ):
        changes.add_metric([result], count)
    yield changes
    yield GaugeMetricFamily(
        "sweetpoint_sched_idle_partial",
        "Cgroups whose sched-idle does not give way to every service.",
        len(state.idle_partial),
    )
