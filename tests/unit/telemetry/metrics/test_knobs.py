# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of core scheduling."""

from controller.reconcilers.core_scheduling import CoreState
from controller.telemetry.metrics.knobs import core_scheduling


def samples(state: CoreState) -> dict[str, float]:
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in core_scheduling(state)
        for sample in family.samples
    }


def test_unknown_values_have_no_series() -> None:
    known = samples(CoreState(problem="no SMT"))
    assert "sweetpoint_core_cookie_tasks" not in known
    assert "sweetpoint_core_overlap_ratio" not in known
    assert known["sweetpoint_core_cookie_changes_totalgiven"] == 0


def test_known_values_have_series() -> None:
    state = CoreState(
        carrying=7,
        foreign=2,
        given=9,
        cleared=1,
        failed=3,
        overlap_ratio=0.25,
        idle_partial=("/a", "/b"),
    )
    assert samples(state) == {
        "sweetpoint_core_cookie_tasks": 7,
        "sweetpoint_core_foreign_tasks": 2,
        "sweetpoint_core_overlap_ratio": 0.25,
        "sweetpoint_core_cookie_changes_totalgiven": 9,
        "sweetpoint_core_cookie_changes_totalcleared": 1,
        "sweetpoint_core_cookie_changes_totalfailed": 3,
        "sweetpoint_sched_idle_partial": 2,
    }
