# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from controller.simulation.conditions import Knobs
from controller.simulation.loads import steady
from controller.simulation.machine import Machine
from controller.simulation.model import Character, Job, Scenario, Service
from controller.simulation.plant import Plant

CALM = Character(memory=0.0, bandwidth=0.0, pressure=0.0, smt=0.0)
# Its own threads do not slow each other down, so that figures can be computed by hand.
PLAIN = Service(character=replace(Service().character, smt=0.0))
STREAM = Character(memory=0.8, bandwidth=8e9, pressure=6.0, smt=0.3)
SECONDS = 20


def scenario(
    character: Character = CALM,
    threads: float = 8,
    jobs: int = 3,
    load: float = 0.5,
    service: Service | None = None,
    machine: Machine | None = None,
) -> Scenario:
    running = tuple(
        Job(name=f"job-{index}", threads=threads, character=character) for index in range(jobs)
    )
    return Scenario(
        name="test",
        title="test",
        load=steady(load),
        jobs_at=lambda _: running,
        services=(service or PLAIN,),
        machine=machine or Machine(),
    )


def run(one: Scenario, set_knobs: Callable[[Knobs], None] | None = None, seed: int = 1) -> Plant:
    plant = Plant(one, seed, SECONDS)
    if set_knobs:
        set_knobs(plant.knobs)
    for _ in range(SECONDS * 10):
        plant.advance()
    return plant


def idle(knobs: Knobs) -> None:
    knobs.idle[:] = True


def p99_ms(plant: Plant) -> float:
    p99 = plant.p99_s(0, SECONDS)
    assert p99 is not None
    return p99 * 1e3


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    first, second, other = (run(scenario(), idle, seed).latencies(0, 60) for seed in (1, 1, 2))
    assert first.tolist() == second.tolist()
    assert first.tolist() != other.tolist()


def test_requests_do_not_depend_on_the_policy() -> None:
    plants = [run(scenario(), set_knobs) for set_knobs in (idle, None)]
    work = [plant.counters.instructions[0] for plant in plants]
    assert work[0] == pytest.approx(work[1], rel=0.01)


@pytest.mark.parametrize("set_knobs", [idle, None])
def test_no_cpu_time_is_made_or_lost(set_knobs: Callable[[Knobs], None] | None) -> None:
    counters = run(scenario(), set_knobs).counters
    assert counters.oncpu.sum() + counters.idle == pytest.approx(16 * SECONDS, rel=0.01)
    assert counters.idle == pytest.approx(0.0, abs=1e-6)


def test_a_service_does_its_work_whatever_runs_beside_it() -> None:
    counters = run(scenario(load=0.5), idle).counters
    assert counters.oncpu[0] / SECONDS == pytest.approx(3000 * 0.5 * 2e-3, rel=0.03)
    assert counters.cycles[0] / counters.instructions[0] == pytest.approx(1.0, abs=0.01)


def test_idle_jobs_do_not_make_a_service_wait_and_normal_ones_do() -> None:
    alone, beside = run(scenario(jobs=0)), run(scenario(), idle)
    assert p99_ms(beside) == pytest.approx(p99_ms(alone), rel=0.02)
    assert beside.counters.inflicted[0] == 0.0
    normal = run(scenario())
    assert p99_ms(normal) > p99_ms(alone) + 1
    assert normal.counters.inflicted[0] > 1.0
    assert normal.counters.blame[0, 1:] == pytest.approx(normal.counters.inflicted[0] / 3, rel=0.01)


def test_weight_two_leaves_the_service_its_cpus_but_not_its_wakeups() -> None:
    def low(knobs: Knobs) -> None:
        knobs.weight[:] = 2.0

    alone, beside = run(scenario(jobs=0)), run(scenario(), low)
    assert 0.5 < p99_ms(beside) - p99_ms(alone) < 2.8  # less than a slice


def test_a_quota_is_kept_and_work_follows_it() -> None:
    def limit(knobs: Knobs) -> None:
        knobs.idle[:] = True
        knobs.quota[:] = (0.5, 2.0, np.inf)
        knobs.period[:] = (0.1, 0.01, 0.1)

    counters = run(scenario(threads=4), limit).counters
    assert counters.oncpu[1:] / SECONDS == pytest.approx([0.5, 2.0, 4.0], rel=0.04)
    assert counters.work == pytest.approx(counters.oncpu[1:], rel=0.01)


def test_a_quota_on_the_parent_holds_for_all_jobs() -> None:
    def limit(knobs: Knobs) -> None:
        knobs.all_quota = 3.0

    counters = run(scenario(), limit).counters
    assert counters.oncpu[1:] / SECONDS == pytest.approx([1.0, 1.0, 1.0], rel=0.03)


def test_a_short_period_shortens_the_waits_behind_a_quota() -> None:
    def limit(period: float) -> Callable[[Knobs], None]:
        def set_knobs(knobs: Knobs) -> None:
            knobs.all_quota, knobs.all_period = 1.0, period

        return set_knobs

    alone = p99_ms(run(scenario(jobs=0)))
    long, short = (p99_ms(run(scenario(), limit(period))) for period in (0.1, 0.01))
    assert long > alone + 0.25
    assert short < (alone + long) / 2


def test_a_cpuset_holds_for_all_jobs() -> None:
    def confine(knobs: Knobs) -> None:
        knobs.cpuset = 6.0

    counters = run(scenario(), confine).counters
    assert counters.oncpu[1:].sum() / SECONDS == pytest.approx(6.0, rel=0.01)


def test_a_throttled_service_is_throttled_as_much_as_it_lacks() -> None:
    limited = replace(PLAIN, quota_cpus=3.3)
    plant = run(scenario(jobs=0, load=0.5, service=limited))
    free = run(scenario(jobs=0, load=0.5))
    throttled = plant.counters.throttled[0] / SECONDS
    assert 0.005 < throttled < 0.2  # 3.0 CPUs on average, more in every third period
    assert p99_ms(plant) > p99_ms(free) + 1
    assert free.counters.throttled[0] == pytest.approx(0.0, abs=1e-9)


def test_bandwidth_slows_a_service_down_and_shows_in_its_cpi() -> None:
    alone, beside = run(scenario(jobs=0)), run(scenario(STREAM), idle)
    assert p99_ms(beside) > 1.3 * p99_ms(alone)
    assert beside.counters.cycles[0] / beside.counters.instructions[0] > 1.3


def test_resctrl_helps_against_bandwidth() -> None:
    def restrict(knobs: Knobs) -> None:
        knobs.idle[:] = True
        knobs.mba = 10.0
        knobs.ways = 2

    restricted, free = run(scenario(STREAM), restrict), run(scenario(STREAM), idle)
    assert p99_ms(restricted) < 0.8 * p99_ms(free)
    assert restricted.counters.work.sum() < free.counters.work.sum()


def test_a_shared_core_slows_both_down() -> None:
    loud = replace(CALM, smt=0.4)
    plant = run(scenario(loud), idle)
    cpi = plant.counters.cycles[0] / plant.counters.instructions[0]
    assert 1.2 < cpi < 1 / 0.6
    assert plant.counters.work.sum() < 0.75 * plant.counters.oncpu[1:].sum()


def test_a_cookie_keeps_jobs_off_the_services_cores_at_the_cost_of_idle_time() -> None:
    def with_cookie(knobs: Knobs) -> None:
        knobs.idle[:] = True
        knobs.cookie = True

    loud = scenario(replace(CALM, smt=0.4))
    plant, free = run(loud, with_cookie), run(loud, idle)
    assert plant.counters.overlap[0] == 0.0 < free.counters.overlap[0]
    assert plant.counters.cycles[0] / plant.counters.instructions[0] == pytest.approx(1.0, abs=0.01)
    # As many CPUs are idle as services run on: 3.0 on average.
    assert plant.counters.idle / SECONDS == pytest.approx(3.0, rel=0.1)


def test_steal_slows_down_without_a_culprit() -> None:
    stolen = replace(scenario(), steal_at=lambda _: 0.3)
    plant, free = run(stolen, idle), run(scenario(), idle)
    assert plant.counters.steal == pytest.approx(0.3 * 16 * SECONDS)
    assert p99_ms(plant) > p99_ms(free)
    assert plant.counters.blame.sum() == 0.0
    assert plant.counters.unknown[0] > 0


def test_slow_phases_raise_the_cpi_without_jobs() -> None:
    slow = replace(scenario(jobs=0), slow_at=lambda _: 1.4)
    counters = run(slow).counters
    assert counters.cycles[0] / counters.instructions[0] == pytest.approx(1.4, rel=0.01)


def test_a_thousand_jobs_share_what_one_would_have() -> None:
    many = run(scenario(jobs=1000, threads=1), idle)
    assert many.counters.oncpu[1:].sum() / SECONDS == pytest.approx(13.0, rel=0.02)
