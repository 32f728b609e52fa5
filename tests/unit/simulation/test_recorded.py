# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A scenario from snapshots: those of a plant give back its load and its jobs."""

from dataclasses import replace

import numpy as np
import pytest

from controller.core.model import QosClass, Snapshot, WorkloadSample
from controller.core.settings import HostFacts
from controller.core.units import NS_PER_SEC
from controller.demo.simulated_knobs import KnobTable, make_workload
from controller.simulation.loads import steps
from controller.simulation.plant import Plant
from controller.simulation.policies.planned import Probes
from controller.simulation.recorded import Recorded, RecordingTooShort
from controller.simulation.scenarios import SCENARIOS, STREAM

SECONDS = 12


def record(seconds: int) -> Recorded:
    scenario = replace(SCENARIOS["bandwidth"], load=steps(0.3, 0.6, every_s=4.0))
    plant = Plant(scenario, 1, seconds + 1)
    plant.knobs.idle[:] = True
    probes, recorded = Probes(plant, ["default"]), Recorded()
    host = HostFacts(cpus=plant.machine.cpus)
    for step in range(seconds * 5 + 1):
        snapshot = probes.snapshot(KnobTable())
        first = step == 0
        recorded.update(snapshot, probes.workloads if first else None, host if first else None)
        plant.advance()
        plant.advance()
    return recorded


def test_the_recorded_load_and_jobs_come_back() -> None:
    scenario = record(SECONDS).scenario("title")
    (service,) = scenario.services
    assert service.load is not None
    level = service.load(np.arange(0.0, 24.0), np.random.default_rng(1))
    assert level[1:4] == pytest.approx(0.6, abs=0.15)  # the harm falls with the load
    assert level[5:8] == pytest.approx(1.0, abs=0.1)
    assert level[13] == level[1]  # it repeats
    assert service.rate * service.work_s == pytest.approx(6.0, rel=0.15)
    stream, gentle, _ = scenario.jobs_at(0.0)
    assert stream.character.bandwidth == pytest.approx(STREAM.bandwidth, rel=0.5)
    assert gentle.character.bandwidth < 0.1 * stream.character.bandwidth
    assert 2 < stream.threads < 5
    assert scenario.machine.pmu and not scenario.machine.resctrl


def test_the_objective_is_above_the_p99_alone() -> None:
    scenario = record(SECONDS).scenario("title")
    (service,) = scenario.services
    assert service.work_s < service.slo_s < 0.1


def test_a_recording_without_a_busy_service_is_refused() -> None:
    with pytest.raises(RecordingTooShort):
        Recorded().scenario("title")
    with pytest.raises(RecordingTooShort):
        record(1).scenario("title")


def test_snapshots_seconds_apart_spread_their_load() -> None:
    recorded = Recorded()
    workload = make_workload("web", 1, QosClass.LS, "default")
    for index in range(5):
        sample = WorkloadSample(workload.cgroup, oncpu_ns=5 * index * NS_PER_SEC)
        snapshot = Snapshot(time_ns=5 * index * NS_PER_SEC, age_ns=0, workloads=(sample,))
        recorded.update(snapshot, (workload,), HostFacts(cpus=4))
    (service,) = recorded.scenario("title").services
    assert service.load is not None
    level = service.load(np.arange(0.0, 20.0), np.random.default_rng(1))
    assert level == pytest.approx(1.0)
    assert service.rate * service.work_s == pytest.approx(1.0)


def test_the_time_between_two_runs_of_the_agent_does_not_count() -> None:
    recorded = Recorded()
    workload = make_workload("web", 1, QosClass.LS, "default")
    for start_s, counted_s in ((1000, 50), (5000, 0), (20, 0)):
        for second in range(4):
            oncpu_ns = (counted_s + second) * NS_PER_SEC
            sample = WorkloadSample(workload.cgroup, oncpu_ns=oncpu_ns)
            time_ns = (start_s + second) * NS_PER_SEC
            snapshot = Snapshot(time_ns=time_ns, age_ns=0, workloads=(sample,))
            recorded.update(snapshot, (workload,), HostFacts(cpus=4), anew=second == 0)
    (service,) = recorded.scenario("title").services
    assert service.load is not None
    assert service.load(np.arange(0.0, 9.0), np.random.default_rng(1)) == pytest.approx(1.0)
    assert service.rate * service.work_s == pytest.approx(1.0)
