# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The records that the planner gets of a plant, and the knobs that its plans set."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from controller.config.sections.law import WHOLE_LAW
from controller.core.decision import Action
from controller.core.model import (
    IndicatorName,
    Knob,
    KnobValue,
    Snapshot,
    Target,
    TargetKind,
)
from controller.core.settings import Profile
from controller.demo.simulated_knobs import KnobTable
from controller.simulation.plant import Plant
from controller.simulation.policies.planned import Planned, Probes
from controller.simulation.policies.registry import policies
from controller.simulation.run import Task, run
from controller.simulation.scenarios import SCENARIOS
from tests.support.loops.closed_loop import make_settings, make_spec

SECONDS = 10


def read(name: str, seconds: int = SECONDS) -> tuple[Plant, Snapshot]:
    plant = Plant(SCENARIOS[name], 1, seconds)
    for _ in range(seconds * 10):
        plant.advance()
    profiles = ["default"] * len(plant.scenario.services)
    return plant, Probes(plant, profiles).snapshot(KnobTable())


def test_counters_of_all_workloads_sum_up_to_the_machine() -> None:
    plant, snapshot = read("bandwidth")
    used = sum(each.oncpu_ns or 0 for each in snapshot.workloads) + (snapshot.idle_ns or 0)
    assert used == pytest.approx(plant.machine.cpus * SECONDS * 1e9, rel=0.02)
    service = snapshot.workloads[0]
    assert service.cycles is not None and service.instructions is not None
    assert service.cycles / service.instructions > 1.4


def test_blame_sums_up_to_the_inflicted_wait() -> None:
    _, snapshot = read("vm")
    service = snapshot.workloads[0]
    assert sum(each.wait_ns for each in snapshot.blame) == pytest.approx(
        service.wait_inflicted_ns, rel=0.001
    )
    assert service.runq_histogram is not None
    assert service.waits == sum(service.runq_histogram)
    assert service.cycles is None  # a machine without counters


def test_the_service_reports_the_p99_of_the_last_second() -> None:
    plant, snapshot = read("harmless")
    (reading,) = snapshot.services
    p99 = plant.p99_s(0, 1.0)
    assert p99 is not None
    assert reading.value == pytest.approx(p99 * 1e9)
    assert reading.age_ns == 0


def test_unchanged_readings_stay_the_same_objects() -> None:
    table, target = KnobTable(), Target(TargetKind.CGROUP, "cpu", 1, "/a")
    other = target._replace(id=2)
    for each in (target, other):
        table.add(each, Knob.SCHED_IDLE, KnobValue("0 2"))
    before = table.readings()
    assert table.readings() is before
    action = Action(
        target=target,
        knob=Knob.SCHED_IDLE,
        previous=KnobValue("0 2"),
        value=KnobValue("1"),
        reason="",
    )
    table.execute([action])
    first, second = table.readings()
    assert (first.value, first.original) == ("1", "0 2")
    assert second is before[1]
    table.execute([replace(action, value=KnobValue("0 2"))])
    assert table.readings()[0] == before[0]
    table.remove(2)
    assert len(table.readings()) == 1


def test_the_planner_limits_the_jobs_that_make_a_service_wait() -> None:
    settings = make_settings(make_spec(sweet_point_ns=3e5), cpus=8)
    profile = settings.profiles["default"]
    plant = Plant(SCENARIOS["vm"], 1, 30)
    policy = Planned(plant, [profile])
    for step in range(300):
        if step % 2 == 0:
            policy.step()
        plant.advance()
    assert np.all(plant.knobs.quota < 1.0)
    assert np.all(plant.knobs.period < 0.1)


def test_the_parent_of_a_thousand_jobs_has_a_quota_at_full_squeeze() -> None:
    profile = make_settings(make_spec(sweet_point_ns=1.0)).profiles["default"]
    plant = Plant(SCENARIOS["pods-1000"], 1, 60)
    # A full squeeze that misses its sweet point would be let go on trial.
    policy = Planned(plant, [profile], law=replace(WHOLE_LAW, verify_squeeze=False))
    for step in range(280):
        if step % 2 == 0:
            policy.step()
        plant.advance()
    # The loops end where best-effort work explains next to nothing of the wait any more.
    assert plant.knobs.all_quota == pytest.approx(0.02 * plant.machine.cpus, rel=0.03)
    assert plant.knobs.quota.sum() > 0.05 * plant.machine.cpus


def test_cookies_are_set_where_services_share_cores_and_suffer() -> None:
    plant = Plant(SCENARIOS["bandwidth"], 1, 60)
    policy = policies()["sweetpoint-cpi-cookies"].factory(plant)
    seen = set()
    for step in range(600):
        if step % 2 == 0:
            policy.step()
        seen.add(plant.knobs.cookie)
        plant.advance()
    assert seen == {False, True}


def test_an_eviction_ends_the_job() -> None:
    (spec,) = make_settings(make_spec(sweet_point_ns=1e4)).profiles["default"].indicators
    assert spec.name is IndicatorName.RUNQ_P99
    profile = Profile(
        name="evicting",
        indicators=(spec,),
        sched_idle=False,
        be_share_min=0.2,
        idle_oncpu_ratio=0.005,
        limits=make_settings().profiles["default"].limits,
        evict_enabled=True,
        evict_after_ns=5_000_000_000,
    )
    task = Task(SCENARIOS["vm"], "evicting", partial(Planned, profiles=[profile]), 1)
    result = run(task, 40, 10)
    assert len(result.evicted) >= 1
    assert any(work == 0.0 for work in result.seconds[-1].job_work_cpus)


def test_the_shipped_profile_only_sets_sched_idle_where_no_cpu_is_waited_for() -> None:
    ours = policies()["sweetpoint"]
    free = policies()["sched-idle"]
    scenario = replace(SCENARIOS["harmless"])
    results = [
        run(Task(scenario, "policy", each.factory, 1), seconds=8, warm_up=2)
        for each in (ours, free)
    ]
    assert results[0].work_cpus == pytest.approx(results[1].work_cpus)
    assert results[0].writes == 0
