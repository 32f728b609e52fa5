# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics of an agent on a host that has everything."""

from collections.abc import Iterator
from dataclasses import fields

from controller.core.decision import MemoryReport, Plan
from controller.core.model import CgroupId, Mode, WorkloadSample
from controller.kube.state import ClusterState, DescriptorsState, ProfilesState
from controller.nri.doorbell import DoorbellState
from controller.reconcilers.core_scheduling import CoreState
from controller.reconcilers.resctrl.monitored import MonitorState
from controller.telemetry.metrics.exporter import Exporter
from controller.telemetry.report import AgentCost, HistoryState, PublishedState, TickReport
from tools.reference.markdown import code, table

__all__ = ("metrics",)


def metrics() -> Iterator[str]:
    """Yield the table of metrics."""
    published = PublishedState(report=_report())
    published.durations_ns.append(1)
    published.lateness_ns.append(1)
    rows = []
    for family in Exporter(published).collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(code(each) for each in getattr(family, "_labelnames", ()))
        rows.append((code(name), family.type, labels, family.documentation))
    yield from table(("metric", "type", "labels", "meaning"), sorted(rows))


def _report() -> TickReport:
    return TickReport(
        time_ns=1,
        mode=Mode.OBSERVE,
        age_ns=1,
        switches=0,
        missed_switches=0,
        workloads=(),
        samples=(
            WorkloadSample(
                CgroupId("cpu", 1),
                cycles=1,
                instructions=1,
                llc_misses=1,
                llc_references=1,
                stalled_cycles=1,
            ),
        ),
        host_pressure_ns={},
        plan=Plan(
            time_ns=1,
            quota_ceiling_cpus=1.0,
            quota_granted_cpus=1.0,
            memory=MemoryReport(
                **dict.fromkeys((each.name for each in fields(MemoryReport)), 1),
            ),
        ),
        knobs=(),
        tick_ns=1,
        ticks=1,
        overruns=0,
        failed_ticks=0,
        cost=AgentCost(
            cpu_s=1.0,
            pss_bytes=1,
            used_cpus=1.0,
            budget_cpus=1.0,
            budget_bytes=1,
            details=(),
            shed=0,
            probes={},
        ),
        probe_problems={},
        config_problem="",
        monitor=MonitorState(
            problem="", groups=0, adopted=0, without_room=0, elsewhere=0, errors=0
        ),
        cores=CoreState(carrying=0, foreign=0, overlap_ratio=0.5),
        cluster=ClusterState(
            node="node",
            age_s=1.0,
            profiles=ProfilesState(config_map="namespace/name", applied_at_s=1.0),
            descriptors=DescriptorsState(),
        ),
        history=HistoryState(enabled=True),
        doorbell=DoorbellState("", "", in_time=0, late=0),
    )
