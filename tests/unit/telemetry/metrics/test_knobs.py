# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of core scheduling and of memory."""

from dataclasses import replace

from controller.core.decision import MemoryReport
from controller.core.model import Knob, KnobReading, KnobValue, Target, TargetKind
from controller.reconcilers.core_scheduling import CoreState
from controller.reconcilers.oom_order import OomState
from controller.telemetry.metrics.knobs import core_scheduling, knob_families, oom_order
from tests.support.reports import report


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


def test_the_order_of_ending_counts_processes_by_result() -> None:
    found = {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in oom_order(OomState(workloads=2, raised=7, failed=1))
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert found == {
        "sweetpoint_oom_workloads": 2,
        "sweetpoint_oom_processes_totalraised": 7,
        "sweetpoint_oom_processes_totalfailed": 1,
    }


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


def test_limits_of_memory_are_labelled_by_their_cgroup() -> None:
    # The number of a cgroup means something else in each hierarchy: 7 is a job's in that of cpu.
    readings = tuple(
        KnobReading(Target(TargetKind.CGROUP, "memory", 7, path), Knob.MEMORY_MAX, KnobValue(value))
        for path, value in (("/batch", "4096"), ("/free", "max"))
    )
    memory = MemoryReport(
        capacity_bytes=9,
        margin_bytes=1,
        others_bytes=3,
        room_bytes=5,
        needed_bytes=4,
        available_bytes=2,
        limited=1,
        unlimited=6,
    )
    found = {
        (sample.name.removeprefix("sweetpoint_memory_"), *sample.labels.values()): sample.value
        for family in knob_families(
            replace(report(1), knobs=readings, plan=replace(report(1).plan, memory=memory))
        )
        for sample in family.samples
        if sample.name.startswith("sweetpoint_memory_")
    }
    assert found == {
        ("limit_bytes", "/batch"): 4096,
        ("room_bytes",): 5,
        ("needed_bytes",): 4,
        ("margin_bytes",): 1,
        ("unguarded_workloads",): 6,
    }
