# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs on the simulated node: the same for a seed, with the planner's writes in force."""

from pathlib import Path

import pytest

from controller.config.load import ConfigError
from tests.plant.__main__ import main
from tests.plant.agent import Agent, Fault, Setup, settings_for
from tests.plant.machine import Machine
from tests.plant.node import STEP_S, Node
from tests.plant.profiles import ProfileKind
from tests.plant.results import compare, load, save, table
from tests.plant.rivals import RIVALS
from tests.plant.run import LAW, Job, Result, run
from tests.plant.scenarios import SCENARIOS


@pytest.mark.parametrize("policy", [LAW, "parties", "koordinator-65"])
def test_a_seed_gives_one_result(policy: str) -> None:
    jobs = [Job("one-hurts", policy, seed, Setup(resctrl=True)) for seed in (1, 1, 2)]
    first, again, other = (run(each, length_s=8.0, warm_up_s=2.0) for each in jobs)
    assert first == again
    assert first.work_cpus != other.work_cpus


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_runs(name: str) -> None:
    for policy in (LAW, *RIVALS):
        result = run(Job(name, policy, 1), length_s=2.0, warm_up_s=1.0)
        assert result.work_cpus > 0


def _agent(setup: Setup, name: str = "one-hurts") -> tuple[Node, Agent]:
    scenario = SCENARIOS[name]
    node = Node(scenario.machine, scenario.service, scenario.jobs, 12.0, 1)
    return node, Agent(node, setup)


def _advance(node: Node, agent: Agent, length_s: float) -> None:
    end_s = node.now_s + length_s
    while node.now_s < end_s:
        agent.step()
        for _ in range(round(0.2 / STEP_S)):
            node.step()


def test_the_plan_is_in_force() -> None:
    node, agent = _agent(Setup(ProfileKind.CACHE, resctrl=True))
    _advance(node, agent, 12.0)
    assert node.knobs.idle == [True, True, True]
    squeezed = node.knobs.percent < 100 or node.knobs.region < 1
    assert squeezed or any(node.knobs.quotas)
    assert agent.writes > 3


def test_a_virtual_machine_has_neither_the_idle_level_nor_resctrl() -> None:
    setup = Setup(resctrl=True)
    assert settings_for(setup, SCENARIOS["vm"].machine).host.resctrl is None
    node, agent = _agent(setup, "vm")
    _advance(node, agent, 1.0)
    assert node.knobs.idle == [False, False, False]


def test_a_switch_is_typed_as_a_user_types_it() -> None:
    law = settings_for(Setup(without=("find_harm", "micro_probes")), Machine()).law
    assert not law.find_harm
    assert law.micro_probes.per_minute == 0
    assert law.fast_rise
    with pytest.raises(ConfigError, match="no_such"):
        settings_for(Setup(without=("no_such",)), Machine())
    with pytest.raises(ConfigError, match="no effect"):
        settings_for(Setup(without=("steady_grants",)), Machine())


@pytest.mark.parametrize("fault", Fault)
def test_faults_of_the_figure(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.plant.agent.FAULT_S", 2.0)
    monkeypatch.setattr("tests.plant.agent.OLD_S", 1)
    node, agent = _agent(Setup(fault=fault))
    _advance(node, agent, 3.0)
    true = node.queue.p99(2)
    assert true is not None
    reading = agent.figure()
    expected = {
        Fault.NONE: true,
        Fault.MISSING: None,
        Fault.DEAD: None,
        Fault.TIMES_TEN: 10 * true,
        Fault.TENTH: true / 10,
        Fault.OLD: node.queue.p99(1),
    }[fault]
    value = None if reading.value is None else reading.value / 1e9
    assert value == (None if expected is None else pytest.approx(expected))
    assert (reading.age_ns is None) is (fault is Fault.DEAD)


def _result(policy: str, seed: int, violated: float, work: float) -> Result:
    return Result("one-hurts", policy, seed, violated, work, 0.0)


def test_table_and_comparison(tmp_path: Path) -> None:
    base = [_result("sched-idle", seed, 80.0, 5.0) for seed in (1, 2, 3)]
    before = [*base, *(_result(LAW, seed, 2.0, 5.0 + seed) for seed in (1, 2, 3))]
    after = [*base, *(_result(LAW, seed, 2.0 + seed, 4.4 + seed) for seed in (1, 2, 3))]
    assert "| one-hurts | 2.0 (2.0-2.0) / 1.40 (1.20-1.60) |" in table(before[3:] + base)
    save(tmp_path / "a.json", "before", before)
    assert load(tmp_path / "a.json") == before
    text = compare(before, after)
    # The work is less by as much in each seed, the violations differ by as much as they scatter.
    assert f"| one-hurts | {LAW} | +2.0 (within 2 x 1.0) | -0.120 (exceeds 2 x 0.000) | 3 |" in text
    assert "(one seed)" in compare(before[3:4] + base, after[3:4] + base)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(ValueError, match=r"b\.json has no results"):
        load(tmp_path / "b.json")


def test_wrong_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--compare", "/no/such/file", "/no/other"])
    assert stop.value.code == 2
    assert "/no/such/file" in capsys.readouterr().err
