# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from controller.simulation.machine import (
    Machine,
    burst_coverage,
    cache_misses,
    mba_part,
    memory_latency,
    share_cpus,
    sibling_busy,
)


def shares(wanted: list[float], weights: list[float], cpus: float) -> list[float]:
    return [float(each) for each in share_cpus(np.array([wanted]), np.array(weights), cpus)[0]]


def test_no_cpu_is_left_unused_while_something_wants_it() -> None:
    random = np.random.default_rng(1)
    wanted = random.uniform(0, 8, (200, 6))
    weights = random.uniform(1, 1024, 6)
    used = share_cpus(wanted, weights, 16.0)
    assert np.all(used <= wanted + 1e-9)
    assert used.sum(axis=1) == pytest.approx(np.minimum(16.0, wanted.sum(axis=1)))


def test_cpus_are_shared_by_weight() -> None:
    assert shares([10, 10], [1024, 1024], 4) == pytest.approx([2, 2])
    assert shares([10, 10], [3072, 1024], 4) == pytest.approx([3, 1])


def test_what_one_does_not_want_goes_to_the_others_by_weight() -> None:
    assert shares([1, 10, 10], [1024, 2048, 1024], 10) == pytest.approx([1, 6, 3])


def test_everything_is_served_on_an_empty_machine() -> None:
    assert shares([1, 2, 3], [3, 1024, 1024], 16) == pytest.approx([1, 2, 3])


def test_idle_work_yields() -> None:
    service, job = shares([8, 100], [1024, 3], 8)
    assert job < 0.05
    assert service + job == pytest.approx(8)


def test_a_quota_runs_at_the_start_of_its_period() -> None:
    edges = np.linspace(0, 0.1, 6)
    cover = burst_coverage(edges, np.array([0.3]), np.array([0.1]), np.array([0.0]))
    assert cover[:, 0] == pytest.approx([1, 0.5, 0, 0, 0])


def test_coverage_is_the_part_of_the_period_whatever_the_phase() -> None:
    edges = np.linspace(3.0, 3.1, 51)
    phase = np.array([0.0, 0.013, 0.1])
    cover = burst_coverage(edges, np.full(3, 0.3), np.full(3, 0.01), phase)
    assert cover.mean(axis=0) == pytest.approx(0.3)


def test_threads_share_cores_only_when_there_are_more_than_cores() -> None:
    machine = Machine(cpus=8, threads_per_core=2)
    near, _ = sibling_busy(np.array([[2.0, 2.0]]), 1, np.inf, machine)
    assert near[0] == pytest.approx([0, 0])
    near, _ = sibling_busy(np.array([[2.0, 6.0]]), 1, np.inf, machine)
    assert near[0] == pytest.approx([0.25, 0.75])
    single = Machine(cpus=8, threads_per_core=1)
    assert sibling_busy(np.array([[2.0, 6.0]]), 1, np.inf, single)[0].sum() == 0


def test_a_cpuset_keeps_jobs_off_the_services_cores() -> None:
    machine = Machine(cpus=8, threads_per_core=2)
    service, job = sibling_busy(np.array([[4.0, 4.0]]), 1, 4.0, machine)
    assert service[0] == pytest.approx([1, 0])  # two cores for four threads of the service
    assert job[0] == pytest.approx([0, 1])
    service, job = sibling_busy(np.array([[6.0, 2.0]]), 1, 4.0, machine)
    assert service[0] == pytest.approx([2 / 3 + 1 / 3 / 2, 1 / 3 / 2])
    assert job[0] == pytest.approx([0.5, 0.5])


def latency(demand: float, memory: float = 0.0, least: float = 1.0) -> float:
    arrays = np.array([[demand]]), np.array([memory]), np.array([least])
    return float(memory_latency(*arrays, bandwidth=1.0)[0])


def test_memory_latency_follows_the_measured_curve() -> None:
    found = [latency(demand) for demand in (0.1, 0.7, 0.9, 0.99)]
    assert found == pytest.approx([1.0, 1.36, 1.98, 2.44], abs=0.02)


def test_a_saturated_memory_moves_its_bandwidth_and_no_more() -> None:
    for demand in (2.0, 3.0, 10.0):
        found = latency(demand, memory=0.5)
        assert demand / (0.5 + 0.5 * found) == pytest.approx(1.0, rel=0.01)


def test_a_workload_that_memory_slows_down_demands_less() -> None:
    assert 1.0 < latency(0.9, memory=0.8) < latency(0.9)
    assert latency(0.9, least=3.0) < 1.05


def test_mba_at_ten_percent_leaves_what_was_measured() -> None:
    assert mba_part(10) == pytest.approx(4 / 17.7, rel=0.03)
    assert mba_part(100) == 1.0


def test_cache_is_occupied_by_pressure_and_ways_limit_jobs() -> None:
    pressure, sets = np.array([1.0, 3.0]), np.array([6.0, 100.0])
    is_job = np.array([False, True])
    free = cache_misses(pressure, sets, is_job, ways=12, limit=12)
    assert free[0] == pytest.approx(0.5)  # 3 of the 6 ways that it uses
    limited = cache_misses(pressure, sets, is_job, ways=12, limit=4)
    assert limited[0] == 0.0  # 8 ways are left
    assert limited[1] > free[1]
