# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of knobs: values read back, ladders, the resctrl group, core scheduling."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.core.in_force import InForce
from controller.core.knob_values import parse_bandwidth, parse_masks
from controller.core.model import Channel, Knob, KnobReading
from controller.core.units import NS_PER_SEC
from controller.core.writes.io_classes import IoClassState
from controller.reconcilers.core_scheduling import CoreState
from controller.reconcilers.oom_order import OomState
from controller.reconcilers.resctrl.control_group import GroupState
from controller.telemetry.metrics.text import filled
from controller.telemetry.report import TickReport

__all__ = (
    "control_group",
    "core_scheduling",
    "io_classes",
    "knob_families",
    "oom_order",
)

_KNOB = ("workload", "knob")
_DOMAIN = ("group", "domain")

_Readings = Mapping[Knob, Sequence[KnobReading]]


def knob_families(report: TickReport) -> Iterator[Metric]:
    """Yield the families of knobs; a value without a limit has no series if it has no number."""
    names = {workload.cgroup.id: workload.name for workload in report.workloads}
    readings: dict[Knob, list[KnobReading]] = {knob: [] for knob in Knob}
    for reading in report.knobs:
        readings[reading.knob].append(reading)
    yield from _workloads(readings, names)
    yield from _groups(readings)
    yield from _memory(report, readings[Knob.MEMORY_MAX])
    yield from _limits(report.in_force, report.time_ns)
    yield from _rungs(report)
    yield from _overwritten(report, {knob for knob, found in readings.items() if found})


def _workloads(readings: _Readings, names: dict[int, str]) -> Iterator[Metric]:
    for name, text, knob, number in (
        (
            "quota_applied_cpus",
            "CPU quota as read back; no series without a quota.",
            Knob.CPU_QUOTA,
            _quota_cpus,
        ),
        ("sched_idle", "1 while cpu.idle is set, as read back.", Knob.SCHED_IDLE, _idle),
        (
            "memory_high_bytes",
            "memory.high as read back; no series for max.",
            Knob.MEMORY_HIGH,
            lambda value: None if value == "max" else int(value),
        ),
        ("io_weight", "io.weight as read back.", Knob.IO_WEIGHT, int),
    ):
        family = GaugeMetricFamily(f"sweetpoint_{name}", text, labels=_KNOB)
        yield filled(
            family,
            (
                ({"workload": names.get(target.id, target.path), "knob": knob}, number(value))
                for target, _, value, _ in readings[knob]
            ),
        )


def _quota_cpus(value: str) -> float | None:
    words = value.split()
    return None if words[0] == "max" else int(words[0]) / int(words[1])


def _idle(value: str) -> int:
    return int(value.split()[0])  # a weight follows if cpu.idle is 0


def _memory(report: TickReport, readings: Sequence[KnobReading]) -> Iterator[Metric]:
    limits = GaugeMetricFamily(
        "sweetpoint_memory_limit_bytes",
        "memory.max (v1: memory.limit_in_bytes) of best-effort work as read back; no series for "
        "max.",
        labels=["cgroup"],
    )
    for reading in readings:
        if reading.value != "max":
            limits.add_metric([reading.target.path], int(reading.value))
    yield limits
    found = report.plan.memory
    for name, text, value in (
        (
            "room_bytes",
            "Memory that best-effort work may need: what the margin and all others leave.",
            None if found is None else found.room_bytes,
        ),
        (
            "needed_bytes",
            "Memory of best-effort work that the kernel cannot reclaim.",
            None if found is None else found.needed_bytes,
        ),
        (
            "margin_bytes",
            "Memory that the guard keeps free of best-effort work.",
            None if found is None else found.margin_bytes,
        ),
        (
            "unguarded_workloads",
            "Best-effort workloads without a cgroup of the memory controller, whose memory has no "
            "limit.",
            None if found is None else found.unlimited,
        ),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"sweetpoint_memory_{name}", text, value)


def _limits(record: InForce, time_ns: int) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "sweetpoint_limited_workloads",
        "Best-effort workloads that a knob of the agent limits now (in observe mode: would limit).",
        len(record.limited),
    )
    held = GaugeMetricFamily(
        "sweetpoint_limited_seconds",
        "For how long a knob of the agent limits the workload, and for which service.",
        labels=("workload", "knob", "channel", "service"),
    )
    for each in record.limited:
        for knob in each.knobs:
            labels = [each.workload.name, knob.knob, knob.channel or "", knob.service or ""]
            held.add_metric(labels, max(0, time_ns - knob.since_ns) / NS_PER_SEC)
    yield held


def _groups(readings: _Readings) -> Iterator[Metric]:
    bandwidth = GaugeMetricFamily(
        "sweetpoint_memory_bandwidth_limit",
        "MB value of the best-effort resctrl group, in the unit of schemata on this host.",
        labels=_DOMAIN,
    )
    for target, _, value, _ in readings[Knob.MBA]:
        _add_domains(bandwidth, target.path, parse_bandwidth(value))
    ways = GaugeMetricFamily(
        "sweetpoint_cache_ways", "L3 ways of the best-effort resctrl group.", labels=_DOMAIN
    )
    for target, _, value, _ in readings[Knob.LLC_WAYS]:
        masks = parse_masks(value)
        _add_domains(ways, target.path, {each: mask.bit_count() for each, mask in masks.items()})
    cookie = GaugeMetricFamily(
        "sweetpoint_core_cookie",
        "1 while the group has a core-scheduling cookie.",
        labels=["group"],
    )
    for target, _, value, _ in readings[Knob.CORE_COOKIE]:
        cookie.add_metric([target.path], float(value != "0"))
    yield from (bandwidth, ways, cookie)


def _add_domains(family: GaugeMetricFamily, group: str, values: dict[int, int]) -> None:
    for domain, value in values.items():
        family.add_metric([group, str(domain)], value)


def _rungs(report: TickReport) -> Iterator[Metric]:
    part = GaugeMetricFamily(
        "sweetpoint_rung_part_ratio",
        "Position of a channel's knob between free (0) and its stop (1).",
        labels=["channel", "knob"],
    )
    usable = GaugeMetricFamily(
        "sweetpoint_rung_usable", "1 if the knob can be changed now.", labels=["channel", "knob"]
    )
    for demand in report.plan.demands:
        if demand.channel is Channel.CPU:
            # The ladder of this channel has one rung, whose position equals the demand.
            part.add_metric([Channel.CPU, Knob.CPU_QUOTA], demand.applied)
    for rung in report.plan.rungs:
        part.add_metric([rung.channel, rung.knob], rung.part)
        usable.add_metric([rung.channel, rung.knob], float(rung.usable))
    yield from (part, usable)


def _overwritten(report: TickReport, present: set[Knob]) -> Iterator[Metric]:
    foreign = CounterMetricFamily(
        "sweetpoint_knob_overwrites",
        "Values of the agent that another program overwrote, except for what is usual for kubelet "
        "and systemd.",
        labels=["knob"],
    )
    routine = CounterMetricFamily(
        "sweetpoint_knob_routine_overwrites",
        "Values of the agent that kubelet or systemd undid or replaced by new settings, as usual.",
        labels=["knob"],
    )
    for family, counts in ((foreign, report.overwritten), (routine, report.routine)):
        # Present from the start, because Prometheus does not see the first increase otherwise.
        for knob in sorted(present | counts.keys()):
            family.add_metric([knob], counts.get(knob, 0))
        yield family


def control_group(state: GroupState) -> Iterator[Metric]:
    """Yield the families of the resctrl groups of best-effort work and of classes."""
    present = GaugeMetricFamily(
        "sweetpoint_resctrl_group_present",
        "1 while the resctrl group of best-effort work exists.",
        labels=["group", "reason"],
    )
    if state.group:
        present.add_metric([state.group, state.problem], state.present)
    yield present
    yield GaugeMetricFamily(
        "sweetpoint_resctrl_tasks", "Tasks in the resctrl group of best-effort work.", state.tasks
    )
    yield GaugeMetricFamily(
        "sweetpoint_resctrl_foreign_tasks",
        "Tasks of best-effort work that another program put into another group.",
        state.elsewhere,
    )
    moves = CounterMetricFamily(
        "sweetpoint_resctrl_task_moves",
        "Tasks moved into the resctrl group of best-effort work, and out of it.",
        labels=["to"],
    )
    moves.add_metric(["group"], state.joined)
    moves.add_metric(["root"], state.left)
    yield moves
    in_force = GaugeMetricFamily(
        "sweetpoint_resctrl_class_present",
        "1 while the limits of a class of services are in force.",
        labels=["class", "reason"],
    )
    tasks = GaugeMetricFamily(
        "sweetpoint_resctrl_class_tasks",
        "Tasks in the resctrl group of a class of services.",
        labels=["class"],
    )
    for each in state.classes:
        in_force.add_metric([each.name, each.problem], each.present and not each.problem)
        tasks.add_metric([each.name], each.tasks)
    yield from (in_force, tasks)


def io_classes(classes: Sequence[IoClassState]) -> Iterator[Metric]:
    """Yield the families of the classes for disks."""
    present = GaugeMetricFamily(
        "sweetpoint_io_class_present",
        "1 while the weight and limits of a class are in force for all of its workloads.",
        labels=["class", "reason"],
    )
    workloads = GaugeMetricFamily(
        "sweetpoint_io_class_workloads", "Workloads with a class for disks.", labels=["class"]
    )
    lacking = GaugeMetricFamily(
        "sweetpoint_io_class_lacking_workloads",
        "Workloads with a class for disks whose weight or limits are not in force.",
        labels=["class"],
    )
    for each in classes:
        present.add_metric([each.name, each.problem], each.present)
        workloads.add_metric([each.name], each.workloads)
        lacking.add_metric([each.name], each.lacking)
    yield from (present, workloads, lacking)


def core_scheduling(state: CoreState) -> Iterator[Metric]:
    """Yield the families of core scheduling and of sched-idle without effect."""
    for name, text, value in (
        ("cookie_tasks", "Tasks with the agent's core-scheduling cookie.", state.carrying),
        (
            "foreign_tasks",
            "Best-effort tasks with a foreign core-scheduling cookie.",
            state.foreign,
        ),
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
        "Tasks whose cookie was set (given), cleared, or could not be changed (failed).",
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
        "Cgroups whose sched-idle does not yield to every service.",
        len(state.idle_partial),
    )


def oom_order(state: OomState) -> Iterator[Metric]:
    """Yield the families of the order in which the kernel ends processes."""
    yield GaugeMetricFamily(
        "sweetpoint_oom_workloads",
        "Best-effort workloads with processes whose oom_score_adj the agent raised.",
        state.workloads,
    )
    processes = CounterMetricFamily(
        "sweetpoint_oom_processes",
        "Best-effort processes whose oom_score_adj was set to 1000 (raised), or could not be "
        "(failed).",
        labels=["result"],
    )
    processes.add_metric(["raised"], state.raised)
    processes.add_metric(["failed"], state.failed)
    yield processes
