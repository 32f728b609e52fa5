# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a tick, for tests of what is made of it."""

from controller.core.decision import ChannelState, Demand, IndicatorStatus, LoopReport, Plan
from controller.core.in_force import HeldKnob, in_force
from controller.core.model import (
    CgroupId,
    Channel,
    IndicatorName,
    Knob,
    KnobReading,
    KnobValue,
    Mode,
    QosClass,
    Target,
    TargetKind,
    Workload,
    WorkloadSample,
)
from controller.probes.service_level.ledger import ServiceState
from controller.telemetry.report import AgentCost, TickReport

__all__ = ("DEMAND", "JOB", "LOOP", "report")

JOB = Target(TargetKind.CGROUP, "cpu", 7, "/batch/job")
# A service that suffers, and the squeeze because of it.
LOOP = LoopReport(
    service="web",
    indicator=IndicatorName.RUNQ_P99,
    channel=Channel.CPU,
    status=IndicatorStatus.FRESH,
    value=3e6,
    sweet_point=2e6,
    deviation=0.58,
    filtered_deviation=None,
    demand=0.25,
    selected=True,
    is_time=True,
)
DEMAND = Demand(
    channel=Channel.CPU, wanted=0.25, applied=0.2, state=ChannelState.SQUEEZE, service="web"
)


def held(time_ns: int) -> HeldKnob:
    """Return the quota of the job, in force for three seconds."""
    return HeldKnob(
        target=JOB,
        knob=Knob.CPU_QUOTA,
        value=KnobValue("5000 10000 0"),
        original=KnobValue("max 100000 0"),
        since_ns=time_ns - 3 * 10**9,
        changed_ns=time_ns - 10**9,
        reason="web runq_p99 3ms > 2ms: demand 0.20",
        channel=Channel.CPU,
        service="web",
        indicator=IndicatorName.RUNQ_P99,
    )


def report(time_ns: int, **changes: object) -> TickReport:
    """Return a report with a service and a best-effort job; *changes* replace its fields."""
    job = Workload("job", CgroupId("cpu", 7), "/batch/job", QosClass.BE, "job", "")
    fields: dict[str, object] = {
        "time_ns": time_ns,
        "mode": Mode.ENFORCE,
        "age_ns": 1000,
        "switches": 12,
        "missed_switches": 0,
        "unknown_oncpu_ns": 1_500_000_000,
        "unmeasured": {QosClass.BE: 7},
        "workloads": (
            Workload("web", CgroupId("cpu", 6), "/web", QosClass.LS, "web", "nginx"),
            job,
        ),
        "samples": (
            WorkloadSample(
                CgroupId("cpu", 6),
                tx_bytes=0,
                rx_bytes=300,
                tx_packets=0,
                rx_packets=3,
                psi_cpu_some_ns=2 * 10**9,
            ),
            WorkloadSample(CgroupId("cpu", 7)),
        ),
        "host_pressure_ns": {"io": 5 * 10**8},
        "plan": Plan(time_ns=time_ns, demands=(DEMAND,), loops=(LOOP,), quota_granted_cpus=1.5),
        "knobs": (
            KnobReading(JOB, Knob.CPU_QUOTA, KnobValue("5000 10000 0")),
            KnobReading(JOB, Knob.SCHED_IDLE, KnobValue("1")),
        ),
        "in_force": in_force(time_ns, (held(time_ns),), {job.cgroup: job}),
        "tick_ns": 1_500_000,
        "ticks": 3,
        "overruns": 1,
        "failed_ticks": 0,
        "cost": AgentCost(
            cpu_s=0.5,
            pss_bytes=60 << 20,
            used_cpus=0.03,
            budget_cpus=0.2,
            budget_bytes=192 << 20,
            details=("counters", "blame"),
            shed=1,
            probes={"sched": (1000, 120_000)},
        ),
        "probe_problems": {},
        "config_problem": "",
        "services": (
            ServiceState(
                service="web",
                kind="json",
                value=12.5e6,
                is_time=True,
                age_ns=10**9,
                errors={"status": 2, "format": 0},
                problem="HTTP status 500",
            ),
            ServiceState(
                service="queue",
                kind="push",
                value=17.0,
                is_time=False,
                age_ns=None,
                errors={},
                problem="",
            ),
        ),
        "refused_pushes": {"forbidden": 3, "format": 0},
        "measured_by_netns": frozenset({CgroupId("cpu", 6)}),
    }
    return TickReport(**(fields | changes))  # type: ignore[arg-type]
