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
    return share_cpus(np.array([wanted]), np.array(weights), cpus)[0].tolist()


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
    assert sibling_busy(np.array([[2.0, 2.0]]), machine)[0] == pytest.approx([0, 0])
    assert sibling_busy(np.array([[2.0, 6.0]]), machine)[0] == pytest.approx([0.25, 0.75])
    single = Machine(cpus=8, threads_per_core=1)
    assert sibling_busy(np.array([[2.0, 6.0]]), single).sum() == 0


def test_memory_latency_rises_with_the_load() -> None:
    latency = memory_latency(np.array([0.0, 0.7, 0.9, 1.0, 2.0]))
    assert latency == pytest.approx([1.0, 1.36, 1.98, 2.5, 5.0], abs=0.01)


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
