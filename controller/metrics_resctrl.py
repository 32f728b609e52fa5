# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resctrl group of best-effort work in Prometheus' words."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.report import GroupState

__all__ = ("control_group",)


def control_group(state: GroupState) -> Iterator[Metric]:
    """Yield the families that tell of *state*."""
    present = GaugeMetricFamily(
        "sweetpoint_resctrl_group_present",
        "1 while the control group of best-effort work is there.",
        labels=["group", "reason"],
    )
    if state.group:
        present.add_metric([state.group, state.problem], state.present)
    yield present
    yield GaugeMetricFamily(
        "sweetpoint_resctrl_tasks", "Tasks in that group after the last look.", state.tasks
    )
    yield GaugeMetricFamily(
        "sweetpoint_resctrl_foreign_tasks",
        "Tasks of best-effort work that somebody else put into another group.",
        state.elsewhere,
    )
    moves = CounterMetricFamily(
        "sweetpoint_resctrl_task_moves", "Tasks moved into that group and out.", labels=["to"]
    )
    moves.add_metric(["group"], state.joined)
    moves.add_metric(["root"], state.left)
    yield moves
