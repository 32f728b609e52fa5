# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A scenario from the recording or the history of a real node: its workloads and their CPU use.

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
# Snapshots that are further apart are of two runs of the agent; the time between them is unknown.
_LONGEST_NS = 120 * NS_PER_SEC
# The counters that a job or a service is made of.
_COUNTERS = ("oncpu_ns", "rx_packets", "memory_bandwidth_bytes", "llc_misses")


class RecordingTooShort(ValueError):
    """The recording has less than two seconds, or no service that ran."""


@dataclass(slots=True)
class _Use:
    """What one workload used: CPUs in each second, and the increase of its counters by name."""

    workload: Workload
    cpus: dict[int, float] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    last: WorkloadSample | None = None

    @property
    def peak(self) -> float:
        return max(self.cpus.values(), default=0.0)

    def add(self, sample: WorkloadSample, begin_ns: int, end_ns: int) -> None:
        """Take what was used since the last sample, from *begin_ns* to *end_ns*."""
        for name in _COUNTERS:
            old, new = getattr(self.last, name, None), getattr(sample, name)
            if old is not None and new is not None and new >= old:
                self.counted[name] = self.counted.get(name, 0) + new - old
                if name == "oncpu_ns":
                    self._spread((new - old) / (end_ns - begin_ns), begin_ns, end_ns)

    def _spread(self, cpus: float, begin_ns: int, end_ns: int) -> None:
        for second in range(begin_ns // NS_PER_SEC, -(-end_ns // NS_PER_SEC)):
            first, last = second * NS_PER_SEC, (second + 1) * NS_PER_SEC
            part = (min(end_ns, last) - max(begin_ns, first)) / NS_PER_SEC
            self.cpus[second] = self.cpus.get(second, 0.0) + cpus * part


class Recorded:
    """Takes the snapshots of a recording or of a history in order."""

    def __init__(self) -> None:
        self._uses: dict[CgroupId, _Use] = {}
        self._host = HostFacts(cpus=1)
        self._last_ns: int | None = None
        # How long was recorded so far.
        self._now_ns = 0
        self._knobs: set[Knob] = set()
        self._counters = False

    def update(
        self,
        snapshot: Snapshot,
        workloads: Iterable[Workload] | None,
        host: HostFacts | None,
        *,
        anew: bool = False,
    ) -> None:
        """Take one snapshot, and the workloads and facts of the host if they changed.

        *anew*: it is the first one of another run of the agent, whose counters began anew.
        """
        if host is not None:
            self._host = host
        for workload in workloads or ():
            self._uses.setdefault(workload.cgroup, _Use(workload)).workload = workload
        elapsed_ns = 0 if self._last_ns is None else snapshot.time_ns - self._last_ns
        self._last_ns = snapshot.time_ns
        if anew or not 0 < elapsed_ns <= _LONGEST_NS:
            elapsed_ns = 0
        begin_ns, self._now_ns = self._now_ns, self._now_ns + elapsed_ns
        self._knobs.update(each.knob for each in snapshot.knobs)
        for sample in snapshot.workloads:
            use = self._uses.get(sample.cgroup)
            if use is None or sample.oncpu_ns is None:
                continue
            self._counters = self._counters or sample.cycles is not None
            if elapsed_ns:
                use.add(sample, begin_ns, self._now_ns)
            use.last = sample

    def scenario(self, title: str) -> Scenario:
        """Return the scenario; the recorded load repeats where a simulation is longer.

        :raises RecordingTooShort: see there.
        """
        seconds = self._now_ns // NS_PER_SEC
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
                services=tuple(_service(each, seconds) for each in services),
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
    requests, used = use.counted.get("rx_packets"), use.counted.get("oncpu_ns")
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
    moved, misses = use.counted.get("memory_bandwidth_bytes"), use.counted.get("llc_misses")
    if moved is None and misses is not None:
        moved = misses * _CACHE_LINE
    used = use.counted.get("oncpu_ns")
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
