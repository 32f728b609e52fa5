# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""States of the CPU channel: evidence, sched-idle, missing data, refusals, foreign values."""

from dataclasses import replace

import pytest

from controller.core.decision import ChannelState, IndicatorStatus, Plan
from controller.core.knob_values import parse_quota
from controller.core.model import Knob, KnobValue, Mode
from controller.core.settings import SafeState
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import TICKS_PER_S, ClosedLoop, make_settings

IDLE = KnobValue("1")
FREE = KnobValue("max 100000 0")


def state(plan: Plan) -> ChannelState:
    return plan.demands[0].state


def test_a_service_throttled_by_its_own_quota_causes_no_squeeze() -> None:
    node = SimulatedNode(1)
    node.throttled_ratio = 0.2
    loop = ClosedLoop(node)
    plans = loop.run(20)
    assert state(plans[-1]) is ChannelState.SELF
    assert not any(plan.actions for plan in plans)
    assert any("held back by its own limit" in each.text for p in plans for each in p.verdicts)


@pytest.mark.parametrize("ratio", [0.001, 0.01])
def test_a_service_that_is_throttled_a_little_is_protected(ratio: float) -> None:
    """Its own quota explains a hundredth of its waits at most, best-effort the rest."""
    node = SimulatedNode(1)
    node.throttled_ratio = ratio
    loop = ClosedLoop(node)
    loop.run(20)
    plans = loop.run(20)
    assert {state(plan) for plan in plans} == {ChannelState.SQUEEZE}
    assert node.p99_ns < 3e6


# A service that waits a lot, whatever best-effort work does.
WAITS = Plant(threads=1, p99_ns=0.1e6, quiet_p99_ns=9e6)


def test_steal_causes_no_squeeze() -> None:
    node = SimulatedNode(1, WAITS)
    node.steal_ratio = 0.6
    loop = ClosedLoop(node)
    plans = loop.run(20)
    assert state(plans[-1]) is ChannelState.STEAL
    # The rate of steal is smoothed, so at first there is evidence against best-effort work.
    assert loop.run(60)[-1].demands[0].applied == 0.0


@pytest.mark.parametrize("every_s", [20, 2])
def test_steal_ends_no_squeeze_that_helps(every_s: int) -> None:
    """For two seconds in each 20, and all the time. A squeeze makes what steal explains larger."""
    node = SimulatedNode(1)
    loop = ClosedLoop(node)
    loop.run(30)
    suffers = 0
    for tick in range(60 * TICKS_PER_S):
        node.steal_ratio = 0.3 if tick / TICKS_PER_S % every_s < 2 else 0.0
        assert state(loop.step()) is ChannelState.SQUEEZE
        suffers += node.p99_ns > 4e6
    assert suffers == 0


def test_what_a_service_suffered_before_its_load_ended_causes_no_squeeze() -> None:
    """The low-pass remembers it for seconds, in which the steal that explained it is over."""
    node = SimulatedNode(1, WAITS)
    node.steal_ratio = 0.6
    loop = ClosedLoop(node)
    assert loop.run(60)[-1].demands[0].applied == 0.0
    node.steal_ratio = node.request_rate = 0.0
    plans = loop.run(30)
    assert plans[-1].loops[0].status is IndicatorStatus.IDLE
    assert max(plan.demands[0].applied for plan in plans) == 0.0


def test_without_evidence_against_best_effort_there_is_no_squeeze() -> None:
    node = SimulatedNode(1, Plant(quiet_p99_ns=9e6, p99_ns=1e3), wants=(0.2,))
    loop = ClosedLoop(node)
    plans = loop.run(30)
    assert state(plans[-1]) is ChannelState.NOT_BE
    assert not any(plan.actions for plan in plans)


def test_a_deviation_that_stays_at_the_floor_without_evidence_ends_the_squeeze() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node)
    loop.run(30)
    node.plant = replace(node.plant, quiet_p99_ns=9e6, p99_ns=1e3)
    plans = loop.run(180)
    assert state(plans[-1]) is ChannelState.NOT_BE
    assert loop.granted_cpus() == [None, None]


def test_with_sched_idle_in_place_the_quota_is_not_needed() -> None:
    """Sched-idle changes the latency by a factor of 50; it is set once and does not cycle."""
    node = SimulatedNode(1, Plant(idle_jump=50.0, free_jump=2.0))
    loop = ClosedLoop(node, make_settings(sched_idle=True))
    plans = loop.run(300)
    writes = [a for plan in plans for a in plan.actions if a.knob is Knob.SCHED_IDLE]
    assert [action.value for action in writes] == [IDLE, IDLE]
    assert loop.granted_cpus() == [None, None]
    settled = [a for plan in plans[60 * 5 :] for a in plan.actions]
    assert settled == []


def test_sched_idle_is_restored_a_minute_after_the_last_service_ended() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node, make_settings(sched_idle=True))
    loop.run(10)
    web = node.sensitive.pop()
    loop.planner.set_workloads(node.workloads)
    loop.run(30)
    assert node.value(node.best_effort[0], Knob.SCHED_IDLE) == IDLE
    loop.run(40)
    assert node.value(node.best_effort[0], Knob.SCHED_IDLE) == KnobValue("0 1024")
    node.sensitive.append(web)
    loop.planner.set_workloads(node.workloads)
    loop.run(1)
    assert node.value(node.best_effort[0], Knob.SCHED_IDLE) == IDLE


def test_a_reload_without_sched_idle_restores_it_at_once() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node, make_settings(sched_idle=True))
    loop.run(10)
    loop.reconfigure(make_settings(sched_idle=False))
    loop.run(0.4)
    assert node.value(node.best_effort[0], Knob.SCHED_IDLE) == KnobValue("0 1024")


def test_an_idle_service_releases_best_effort() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node)
    loop.run(30)
    node.request_rate = 0.0
    plans = loop.run(120)
    assert plans[-1].loops[0].status is IndicatorStatus.IDLE
    assert loop.granted_cpus() == [None, None]


def test_missing_data_is_held_for_five_ticks_then_the_safe_state_restores_the_quota() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node, make_settings(sched_idle=True))
    node.plant = replace(node.plant, idle_jump=1.0)
    loop.run(30)
    granted = loop.granted_cpus()
    assert None not in granted
    node.blind = True
    plans = loop.run(2 + 0.4)
    states = [state(plan) for plan in plans]
    assert states[2:7] == [ChannelState.HOLD] * 5
    assert states[7:] == [ChannelState.SAFE] * 5
    assert all(not plan.actions for plan in plans[2:7])
    assert [plan.safe for plan in plans] == [False] * 7 + [True] * 5
    assert loop.granted_cpus() == [None, None]
    assert node.value(node.best_effort[0], Knob.SCHED_IDLE) == IDLE
    node.blind = False
    loop.run(30)
    assert None not in loop.granted_cpus()


def test_the_other_safe_states() -> None:
    for safe_state, quota, idle in (
        (SafeState.RESTORE, None, KnobValue("0 1024")),
        (SafeState.FLOOR, 1_001 / 20_000, IDLE),
    ):
        node = SimulatedNode(1)
        node.plant = replace(node.plant, idle_jump=1.0)
        loop = ClosedLoop(node, make_settings(sched_idle=True, safe_state=safe_state))
        loop.run(10)
        node.blind = True
        loop.run(5)
        assert loop.granted_cpus() == [quota, quota]
        assert node.value(node.best_effort[0], Knob.SCHED_IDLE) == idle


def test_refused_writes_do_not_wind_up_the_demand() -> None:
    """All writes are refused for ten minutes; the squeeze then starts from a low demand."""
    node = SimulatedNode(1)
    targets = {(each.cgroup.id, Knob.CPU_QUOTA) for each in node.best_effort}
    node.refused = set(targets)
    loop = ClosedLoop(node)
    plans = loop.run(600)
    writes = sum(len(plan.actions) for plan in plans)
    assert writes <= 2 * 16
    assert plans[-1].demands[0].applied < 0.1
    node.refused.clear()
    plans = loop.run(120)
    assert None not in loop.granted_cpus()


def test_one_refusing_target_leaves_the_cut_to_the_others() -> None:
    node = SimulatedNode(1, wants=(0.3, 1.2))
    node.refused = {(node.best_effort[0].cgroup.id, Knob.CPU_QUOTA)}
    loop = ClosedLoop(node)
    plans = loop.run(60)
    granted = loop.granted_cpus()
    assert granted[0] is None
    assert granted[1] is not None
    assert granted[1] < 0.3
    assert plans[-1].demands[0].applied > 0.5


def test_a_foreign_value_becomes_the_original_and_is_overwritten_three_times() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node)
    loop.run(20)
    batch = node.best_effort[0]
    reports = []
    for _ in range(4):
        assert (parse_quota(node.value(batch, Knob.CPU_QUOTA)).cpus or 9) < 1
        node.write(batch, Knob.CPU_QUOTA, KnobValue("150000 100000 0"))
        for plan in loop.run(10):
            reports += [each.text for each in plan.verdicts if "another program" in each.text]
    assert node.value(batch, Knob.CPU_QUOTA) == KnobValue("150000 100000 0")
    assert len(reports) == 1
    loop.run(300)
    assert node.value(batch, Knob.CPU_QUOTA) == KnobValue("150000 100000 0")


def test_the_kernel_doubling_a_period_is_not_a_foreign_write() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node)
    loop.run(30)
    batch = node.best_effort[0]
    for _ in range(6):
        quota, period, _ = node.value(batch, Knob.CPU_QUOTA).split()
        doubled = KnobValue(f"{2 * int(quota)} {2 * int(period)} 0")
        node.write(batch, Knob.CPU_QUOTA, doubled)
        loop.run(5)
    node.plant = replace(node.plant, p99_ns=1.0)
    loop.run(120)
    assert node.value(batch, Knob.CPU_QUOTA) == FREE


def test_observe_plans_once_per_change_and_writes_nothing() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node, make_settings(sched_idle=True, mode=Mode.OBSERVE))
    plans = loop.run(60)
    assert loop.granted_cpus() == [None, None]
    idle = [a for plan in plans for a in plan.actions if a.knob is Knob.SCHED_IDLE]
    assert len(idle) == 2
    # The node does not react, so the demand ends at 1, the quotas at the floor, and writes end.
    assert plans[-1].demands[0].applied == 1.0
    assert not any(plan.actions for plan in plans[-50:])
    loop.reconfigure(make_settings(sched_idle=True))
    loop.run(60)
    assert node.value(node.best_effort[0], Knob.SCHED_IDLE) == IDLE
    assert node.p99_ns < 2e6


def test_a_gap_holds_the_loop() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node)
    before = loop.run(30)[-1]
    loop.tick += 20
    after = loop.step()
    assert after.demands[0].applied == before.demands[0].applied
    assert not after.actions


def test_the_quota_of_a_workload_removed_from_the_list_is_restored() -> None:
    node = SimulatedNode(1)
    loop = ClosedLoop(node)
    loop.run(30)
    loop.planner.set_workloads(node.workloads[:-1])
    loop.run(1)
    assert node.value(node.best_effort[1], Knob.CPU_QUOTA) == FREE
    assert node.value(node.best_effort[0], Knob.CPU_QUOTA) != FREE


def test_the_culprit_is_squeezed_most() -> None:
    """Two workloads of equal use, of which only one inflicts wait."""
    node = SimulatedNode(1, wants=(0.8, 0.8))
    loop = ClosedLoop(node)
    harmless = node.best_effort[1].cgroup
    for _ in range(60 * 5):
        snapshot = node.snapshot(loop.tick * 200_000_000)
        blame = tuple(each for each in snapshot.blame if each.culprit != harmless)
        blame = tuple(
            each._replace(wait_ns=2 * each.wait_ns) if each.culprit is not None else each
            for each in blame
        )
        plan = loop.planner.step(replace(snapshot, blame=blame), loop.outcomes)
        loop.outcomes = node.execute(plan.actions)
        loop.tick += 1
    culprit, other = loop.granted_cpus()
    assert culprit is not None
    assert culprit < 0.2
    assert other is None or other > 2 * culprit


def test_the_floor_as_safe_state_leaves_most_of_the_machine_to_services() -> None:
    node = SimulatedNode(1, wants=(0.1,) * 20)
    loop = ClosedLoop(node, make_settings(safe_state=SafeState.FLOOR))
    loop.run(2)
    node.blind = True
    assert loop.run(3)[-1].safe
    # Twenty floors of 0.05 CPUs are half of the two CPUs; they get what two floors are.
    assert sum(cpus or 9.0 for cpus in loop.granted_cpus()) == pytest.approx(0.1, rel=0.002)


def test_a_service_below_its_sweet_point_causes_no_squeeze_without_evidence() -> None:
    """After a quiet time the proportional part of a loop asks long before the sweet point."""
    quiet = Plant(quiet_p99_ns=1e5, p99_ns=1e3)
    node = SimulatedNode(1, quiet)
    loop = ClosedLoop(node)
    loop.run(60)
    node.plant = replace(quiet, quiet_p99_ns=2e6)  # its own waits; the sweet point is 3 ms
    plans = loop.run(20)
    assert max(plan.loops[0].filtered_deviation or -1.0 for plan in plans) > -0.1
    assert {state(plan) for plan in plans} <= {ChannelState.FREE, ChannelState.NOT_BE}
    assert all(plan.quota_granted_cpus is None for plan in plans)
