# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The planner of this project on a plant: records as the probes give them, knobs as the executor.

The planner is the one of the agent, with settings from a profile file. Its plans are applied to the
plant's knobs by text, with the outcomes of a real executor.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from controller.config.sections.law import WHOLE_LAW
from controller.core.decision import Eviction, Outcome, Plan
from controller.core.knob_values import (
    format_bandwidth,
    format_idle,
    format_masks,
    parse_bandwidth,
    parse_idle,
    parse_masks,
    parse_quota,
)
from controller.core.model import (
    Blame,
    EvictionAnswer,
    EvictionResult,
    Knob,
    KnobValue,
    Mode,
    QosClass,
    ServiceReading,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadSample,
)
from controller.core.planner import Planner
from controller.core.settings import (
    CoreMode,
    CoreSettings,
    HostFacts,
    LawSettings,
    Profile,
    ResctrlFacts,
    SafeState,
    Settings,
)
from controller.core.units import NS_PER_SEC
from controller.demo.simulated_knobs import KnobTable, make_workload, target_of
from controller.simulation.machine import KUBELET_WEIGHT, Array, Machine
from controller.simulation.plant import Plant

__all__ = ("Planned", "Probes")

TICK_NS = 200_000_000
RESERVE_CPUS = 0.1  # default of `reserve` in the configuration
STALE_TICKS = 5
GROUP = Target(TargetKind.RESCTRL_GROUP, "/sys/fs/resctrl", 77, "sweetpoint-best-effort")
_CORES = Target(TargetKind.CORE_GROUP, "core", 1, "best-effort")
# The parent of the jobs, as that of a kubelet's BestEffort pods on cgroup v2.
_PARENT = Target(TargetKind.CGROUP, "cpu", 1, "/besteffort")
_NO_COOKIE = KnobValue("0")
_FREE_QUOTA = KnobValue("max 100000 0")
_FIRST_SERVICE, _FIRST_JOB = 100, 10_000
_PACKET_BYTES = 500


class Planned:
    """The planner with *profiles*, one for each service in order.

    *resctrl*: the planner may use it where the machine has it; *cookies*: core scheduling as well,
    in mode auto. ``plan`` is that of the last tick.
    """

    interval_s = TICK_NS / NS_PER_SEC

    def __init__(
        self,
        plant: Plant,
        profiles: Sequence[Profile],
        resctrl: bool = True,
        cookies: bool = False,
        law: LawSettings = WHOLE_LAW,
    ) -> None:
        self._plant = plant
        self._probes = Probes(plant, [each.name for each in profiles])
        self._table = KnobTable()
        self._outcomes: tuple[Outcome, ...] = ()
        self.plan: Plan | None = None
        uses_resctrl = resctrl and plant.machine.resctrl
        self._add_knobs(uses_resctrl)
        if cookies:
            self._table.add(_CORES, Knob.CORE_COOKIE, _NO_COOKIE)
        settings = Settings(
            tick_ns=TICK_NS,
            host=HostFacts(
                cpus=plant.machine.cpus,
                resctrl=_resctrl_facts(plant.machine) if uses_resctrl else None,
            ),
            profiles={each.name: each for each in profiles},
            reserve_cpus=RESERVE_CPUS,
            safe_state=SafeState.STATIC,
            stale_ticks=STALE_TICKS,
            mode=Mode.ENFORCE,
            core=CoreSettings(CoreMode.AUTO if cookies else CoreMode.OFF),
            law=law,
        )
        self._planner = Planner(settings, self._probes.workloads)

    def _add_knobs(self, resctrl: bool) -> None:
        machine = self._plant.machine
        self._table.add(_PARENT, Knob.CPU_QUOTA, _FREE_QUOTA)
        for workload in self._probes.jobs:
            self._table.add(target_of(workload), Knob.CPU_QUOTA, _FREE_QUOTA)
            if machine.sched_idle:
                self._table.add(
                    target_of(workload), Knob.SCHED_IDLE, format_idle(round(KUBELET_WEIGHT))
                )
        if resctrl:
            self._table.add(GROUP, Knob.LLC_WAYS, format_masks({0: (1 << machine.ways) - 1}))
            self._table.add(GROUP, Knob.MBA, format_bandwidth({0: 100}))

    def step(self) -> None:
        """Take one tick: snapshot, plan, writes."""
        snapshot = self.measure()
        self._table.now_ns = snapshot.time_ns
        self.plan = plan = self._planner.step(snapshot, self._outcomes)
        self._outcomes = self._table.execute(plan.actions)
        for outcome in self._outcomes:
            if outcome.applied is not None:
                self._apply(outcome.action.target, outcome.action.knob, outcome.applied)
        if plan.eviction is not None:
            self._evict(plan.eviction)

    def measure(self) -> Snapshot:
        """Return what the agent sees of the plant now."""
        return self._probes.snapshot(self._table)

    def _evict(self, eviction: Eviction) -> None:
        """Evict the job at once; the next snapshot has the answer."""
        self._plant.knobs.evicted[eviction.cgroup.id - _FIRST_JOB] = True
        self._probes.evict(eviction)
        self._table.remove(eviction.cgroup.id)
        self._planner.set_workloads(self._probes.workloads)

    def _apply(self, target: Target, knob: Knob, value: KnobValue) -> None:
        knobs = self._plant.knobs
        index = target.id - _FIRST_JOB
        if knob is Knob.CPU_QUOTA:
            quota = parse_quota(value)
            cpus, period_s = quota.cpus or np.inf, quota.period_us / 1e6
            if target == _PARENT:
                knobs.all_quota, knobs.all_period = cpus, period_s
            else:
                knobs.quota[index], knobs.period[index] = cpus, period_s
        elif knob is Knob.SCHED_IDLE:
            knobs.idle[index] = parse_idle(value) is None
        elif knob is Knob.LLC_WAYS:
            knobs.ways = parse_masks(value)[0].bit_count()
        elif knob is Knob.MBA:
            knobs.mba = float(parse_bandwidth(value)[0])
        elif knob is Knob.CORE_COOKIE:
            knobs.cookie = value != _NO_COOKIE


class Probes:
    """Reads a plant as the probes read a node; the services have the given *profiles* by name."""

    def __init__(self, plant: Plant, profiles: Sequence[str]) -> None:
        self._plant = plant
        self.services = [
            make_workload(service.name, _FIRST_SERVICE + index, QosClass.LS, profile)
            for index, (service, profile) in enumerate(
                zip(plant.scenario.services, profiles, strict=True)
            )
        ]
        self.jobs = [
            make_workload(job.name, _FIRST_JOB + index, QosClass.BE, "")._replace(
                path=f"{_PARENT.path}/{job.name}", quota_at=_PARENT
            )
            for index, job in enumerate(plant.jobs)
        ]
        self._answers: tuple[EvictionAnswer, ...] = ()
        self._figures: Mapping[str, float | None] = {}
        self._figures_ns = 0

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads of the node, services first."""
        return (*self.services, *self.jobs)

    def evict(self, eviction: Eviction) -> None:
        """Remove a job, and answer its eviction in the next snapshot."""
        self.jobs = [each for each in self.jobs if each.cgroup != eviction.cgroup]
        self._answers = (
            EvictionAnswer(eviction.cgroup, eviction.channel, EvictionResult.EVICTED, ""),
        )

    def snapshot(self, table: KnobTable) -> Snapshot:
        """Read everything; the knobs from *table*."""
        plant, counters = self._plant, self._plant.counters
        now_ns = round(plant.time_s * NS_PER_SEC)
        beside, total = counters.overlap
        answers, self._answers = self._answers, ()
        return Snapshot(
            time_ns=now_ns,
            age_ns=0,
            workloads=tuple(self._samples()),
            blame=self._blame(),
            system_oncpu_ns=0,
            idle_ns=_ns(counters.idle),
            steal_ns=_ns(counters.steal),
            knobs=table.readings(),
            services=self._service_readings(now_ns),
            core_overlap_ratio=beside / total if total > 0 else None,
            evictions=answers,
        )

    def _column(self, workload: Workload) -> int:
        """Return the column of a workload in the plant's counters."""
        id_ = workload.cgroup.id
        return id_ - _FIRST_SERVICE if id_ < _FIRST_JOB else id_ - _FIRST_JOB + len(self.services)

    def _samples(self) -> Iterator[WorkloadSample]:
        counters, machine = self._plant.counters, self._plant.machine
        columns = {"oncpu_ns": _whole(counters.oncpu * NS_PER_SEC)}
        if machine.pmu:
            for name in ("cycles", "instructions", "llc_misses", "llc_references"):
                columns[name] = _whole(getattr(counters, name))
            if machine.resctrl:
                columns["memory_bandwidth_bytes"] = _whole(counters.memory_bytes)
        names, rows = tuple(columns), list(zip(*columns.values(), strict=True))
        for workload in self.workloads:
            index = self._column(workload)
            sample = WorkloadSample(workload.cgroup, **dict(zip(names, rows[index], strict=True)))
            yield self._with_waits(sample, index) if index < len(self.services) else sample

    def _with_waits(self, sample: WorkloadSample, index: int) -> WorkloadSample:
        """Return the sample of service *index* with what only services have."""
        counters = self._plant.counters
        histogram = tuple(counters.histogram[index].tolist())
        throttled = _ns(counters.throttled[index])
        packets = round(counters.packets[index])
        return sample._replace(
            wait_total_ns=_ns(counters.run_delay[index]) + throttled,
            wait_inflicted_ns=_ns(counters.inflicted[index]),
            waits=sum(histogram),
            runq_histogram=histogram,
            throttled_ns=throttled,
            tx_packets=packets // 2,
            rx_packets=packets // 2,
            tx_bytes=packets // 2 * _PACKET_BYTES,
            rx_bytes=packets // 2 * _PACKET_BYTES,
        )

    def _blame(self) -> tuple[Blame, ...]:
        counters = self._plant.counters
        pairs = []
        for row, victim in enumerate(self.services):
            for culprit in self.workloads:
                wait = counters.blame[row, self._column(culprit)]
                if wait > 0:
                    pairs.append(Blame(victim.cgroup, culprit.cgroup, True, _ns(wait)))
            if counters.unknown[row] > 0:
                pairs.append(Blame(victim.cgroup, None, False, _ns(counters.unknown[row])))
        return tuple(pairs)

    def _service_readings(self, now_ns: int) -> tuple[ServiceReading, ...]:
        """Return the p99 of the last second of each service, which it reports once a second."""
        if now_ns // NS_PER_SEC != self._figures_ns // NS_PER_SEC:
            self._figures_ns = now_ns
            p99s = [self._plant.p99_s(index, 1.0) for index in range(len(self.services))]
            self._figures = {
                each.service: p99 for each, p99 in zip(self.services, p99s, strict=True)
            }
        return tuple(
            ServiceReading(
                service,
                None if p99 is None else p99 * NS_PER_SEC,
                now_ns - self._figures_ns,
            )
            for service, p99 in self._figures.items()
        )


def _resctrl_facts(machine: Machine) -> ResctrlFacts:
    return ResctrlFacts(
        domains=(0,),
        mba_min=10,
        mba_max=100,
        mba_step=10,
        llc_ways=machine.ways,
        llc_min_ways=1,
        bandwidth=machine.pmu,
    )


def _whole(column: Array) -> list[int]:
    whole: list[int] = np.rint(column).astype(np.int64).tolist()
    return whole


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_SEC)
