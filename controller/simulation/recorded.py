# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A scenario from a recording of a real node: its workloads, and their CPU use over time.

A recording shows what workloads used under the policy that ran, not what they would have used under
another one, so the scenario is a model of that node: the services get the recorded load, the jobs
the most CPUs and the memory traffic per CPU that were seen. What was not measured has the values of
an average program.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
import math

import numpy as np

from controller.core.model import CgroupId, Knob, QosClass, Snapshot, Workload, WorkloadSample
from controller.core.settings import HostFacts
from controller.core.units import NS_PER_SEC
from controller.simulation.conditions import STEP_S
from controller.simulation.loads import steady
from controller.simulation.machine import Array, Machine
from controller.simulation.model import Character, Job, Load, Scenario, Service
from controller.simulation.plant import Plant

__all__ = ("NAME", "Recorded", "RecordingTooShort")

NAME = "recording"
_CACHE_LINE = 64
# A request is what a service does between two packets that it receives, within these bounds; the
# lower one keeps a simulation short.
_WORK_S = 2e-3
_SHORTEST_S, _LONGEST_S = 1e-4, 20e-3
_MOST_REQUESTS_PER_S = 4000.0
_WORKERS_PER_CPU = 1.5
# An objective is this factor over the p99 of the service alone on the node.
_OBJECTIVE = 1.5
_CALIBRATION_S = 20
# Below these CPUs at its busiest second a workload is left out.
_LEAST_CPUS = 0.02


class RecordingTooShort(ValueError):
    """The recording has less than two seconds, or no service that ran."""


@dataclass(slots=True)
class _Use:
    """What one workload used: CPUs in each second; the first and the last sample."""

    workload: Workload
    cpus: dict[int, float] = field(default_factory=dict)
    first: WorkloadSample | None = None
    last: WorkloadSample | None = None

    @property
    def peak(self) -> float:
        return max(self.cpus.values(), default=0.0)

    def counted(self, name: str) -> float | None:
        """Return the increase of a counter; ``None`` if it was not measured."""
        if self.first is None or self.last is None:
            return None
        old, new = getattr(self.first, name), getattr(self.last, name)
        return None if old is None or new is None or new < old else float(new - old)


class Recorded:
    """Takes the snapshots of a recording in order."""

    def __init__(self) -> None:
        self._uses: dict[CgroupId, _Use] = {}
        self._host = HostFacts(cpus=1)
        self._start_ns: int | None = None
        self._end_ns = 0
        self._knobs: set[Knob] = set()
        self._counters = False

    def update(
        self, snapshot: Snapshot, workloads: Iterable[Workload] | None, host: HostFacts | None
    ) -> None:
        """Take one snapshot, and the workloads and facts of the host if they changed."""
        if host is not None:
            self._host = host
        for workload in workloads or ():
            self._uses.setdefault(workload.cgroup, _Use(workload)).workload = workload
        if self._start_ns is None:
            self._start_ns = snapshot.time_ns
        second = (snapshot.time_ns - self._start_ns) // NS_PER_SEC
        self._end_ns = snapshot.time_ns
        self._knobs.update(each.knob for each in snapshot.knobs)
        for sample in snapshot.workloads:
            use = self._uses.get(sample.cgroup)
            if use is None or sample.oncpu_ns is None:
                continue
            self._counters = self._counters or sample.cycles is not None
            if use.last is not None and use.last.oncpu_ns is not None:
                ran = max(0, sample.oncpu_ns - use.last.oncpu_ns) / NS_PER_SEC
                use.cpus[second] = use.cpus.get(second, 0.0) + ran
            use.first = use.first or sample
            use.last = sample

    def scenario(self, title: str) -> Scenario:
        """Return the scenario; the recorded load repeats where a simulation is longer.

        :raises RecordingTooShort: see there.
        """
        seconds = 0 if self._start_ns is None else (self._end_ns - self._start_ns) // NS_PER_SEC
        ran = [each for each in self._uses.values() if each.peak >= _LEAST_CPUS]
        services = [each for each in ran if each.workload.qos is QosClass.LS]
        jobs = [each for each in ran if each.workload.qos is QosClass.BE]
        if seconds < 2 or not services:
            raise RecordingTooShort("the recording has less than two seconds, or no busy service")
        machine = Machine(
            cpus=self._host.cpus,
            threads_per_core=2 if self._host.cpus % 2 == 0 else 1,
            pmu=self._counters,
            resctrl=self._host.resctrl is not None,
            sched_idle=Knob.SCHED_IDLE in self._knobs,
        )
        batch = tuple(_job(each, machine) for each in jobs)
        return _with_objectives(
            Scenario(
                name=NAME,
                title=title,
                load=steady(1.0),
                jobs_at=lambda _: batch,
                services=tuple(_service(each, int(seconds)) for each in services),
                machine=machine,
            )
        )


def _load(use: _Use, seconds: int) -> Load:
    """Return the load of a service over time, 1 in its busiest second; it repeats."""
    levels = np.array([use.cpus.get(second, 0.0) for second in range(seconds)]) / use.peak

    def load(times: Array, _: np.random.Generator) -> Array:
        return np.asarray(levels[times.astype(int) % seconds])

    return load


def _service(use: _Use, seconds: int) -> Service:
    requests = use.counted("rx_packets")
    used = use.counted("oncpu_ns")
    work_s = used / requests / NS_PER_SEC if used and requests else _WORK_S
    work_s = min(_LONGEST_S, max(_SHORTEST_S, use.peak / _MOST_REQUESTS_PER_S, work_s))
    return Service(
        name=use.workload.name,
        workers=math.ceil(_WORKERS_PER_CPU * use.peak) + 1,
        work_s=work_s,
        rate=use.peak / work_s,
        slo_s=math.inf,
        load=_load(use, seconds),
    )


def _job(use: _Use, machine: Machine) -> Job:
    moved, misses = use.counted("memory_bandwidth_bytes"), use.counted("llc_misses")
    if moved is None and misses is not None:
        moved = misses * _CACHE_LINE
    used = use.counted("oncpu_ns")
    character = Character()
    if moved is not None and used:
        bandwidth = min(machine.cpu_bandwidth, moved / (used / NS_PER_SEC))
        part = bandwidth / machine.cpu_bandwidth
        character = Character(bandwidth=bandwidth, memory=min(0.6, 0.05 + part), pressure=6 * part)
    return Job(name=use.workload.name, threads=use.peak, character=character)


def _with_objectives(scenario: Scenario) -> Scenario:
    """Return *scenario* with objectives, from a run at full load without jobs."""
    services = tuple(replace(each, load=None) for each in scenario.services)
    idle_jobs = tuple(replace(each, threads=0.0) for each in scenario.jobs_at(0.0))
    alone = replace(
        scenario, services=services, load=steady(1.0), jobs_at=lambda _: idle_jobs, title=""
    )
    plant = Plant(alone, 0, _CALIBRATION_S)
    for _ in range(round(_CALIBRATION_S / STEP_S)):
        plant.advance()
    p99s = [plant.p99_s(index, _CALIBRATION_S) for index in range(len(services))]
    return replace(
        scenario,
        services=tuple(
            replace(each, slo_s=_OBJECTIVE * (p99 or each.work_s))
            for each, p99 in zip(scenario.services, p99s, strict=True)
        ),
    )
