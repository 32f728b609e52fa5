# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import replace
import itertools
from typing import Any

import pytest

from controller.trial.blocks import Arm, Design
from controller.trial.runner import HarmError, Runner, TrialEndError
from tests.support.trial import MadeAgent

DESIGN = Design(pairs=6, enforce_s=60.0, pause_s=60.0, washout_s=20.0, seed=1)


def runner(agent: MadeAgent, design: Design = DESIGN, most_harm: float = 0.5) -> Runner:
    return Runner(agent, agent, design, most_harm)


def test_each_block_is_measured_under_its_own_arm() -> None:
    agent = MadeAgent()
    pairs = [*runner(agent).run()]
    assert len(pairs) == DESIGN.pairs
    for pair in pairs:
        assert (pair.enforce.arm, pair.pause.arm) == (Arm.ENFORCE, Arm.PAUSE)
        assert pair.enforce.suffered_ratio["web"] == pytest.approx(0.1, abs=1e-6)
        assert pair.pause.suffered_ratio["web"] == pytest.approx(0.5, abs=1e-6)
        assert pair.enforce.best_effort_cpus == pytest.approx(1.0)
        assert pair.pause.best_effort_cpus == pytest.approx(1.5)
        assert pair.enforce.agent_cpus == pytest.approx(0.02)
        assert pair.enforce.measured_s == pytest.approx(40.0, abs=0.5)
        assert pair.enforce.values == {"web runq_p99 (ms)": 2.0}
    assert agent.pauses == []
    assert agent.now == pytest.approx(1000 + DESIGN.total_s, abs=5)


def test_the_order_is_that_of_the_design() -> None:
    pairs = [*runner(MadeAgent()).run()]
    firsts = [min(pair, key=lambda block: block.began_s).arm for pair in pairs]
    assert firsts == [first for first, _ in DESIGN.order()]
    assert set(firsts) == {*Arm}


@pytest.mark.parametrize("lag_s", [1.0, 4.0, 15.0])
def test_an_agent_that_obeys_later_is_waited_for(lag_s: float) -> None:
    """With this seed there are two paused blocks in a row, and two others."""
    every = [arm for pair in DESIGN.order() for arm in pair]
    assert {arm for arm, other in itertools.pairwise(every) if arm is other} == {*Arm}
    agent = MadeAgent(lag_s=lag_s)
    pairs = [*runner(agent).run()]
    assert len(pairs) == DESIGN.pairs
    for pair in pairs:
        assert pair.pause.suffered_ratio["web"] == pytest.approx(0.5, abs=1e-6)
        assert pair.pause.measured_s == pytest.approx(40.0, abs=0.5)
    assert agent.pauses == []


def test_each_pause_ends_by_itself_if_nothing_ends_it() -> None:
    agent = MadeAgent()
    ends = []
    pause = agent.pause

    def noted(until_s: float) -> None:
        ends.append(until_s - agent.now)
        pause(until_s)

    agent.pause = noted  # type: ignore[method-assign]
    assert len([*runner(agent).run()]) == DESIGN.pairs
    assert ends == [pytest.approx(100.0)] * DESIGN.pairs


@pytest.mark.parametrize("ended", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("at_s", [5.0, 35.0, 61.0, 100.0, 200.0])
def test_whatever_ends_it_the_agent_enforces(ended: type[BaseException], at_s: float) -> None:
    agent = MadeAgent()

    def end() -> None:
        raise ended

    agent.at = [(1000 + at_s, end)]
    with pytest.raises(ended):
        list(runner(agent).run())
    assert agent.pauses == []


def first_pause_s() -> float:
    """Return when the first paused block of the design begins, after the start."""
    return 0.0 if DESIGN.order()[0][0] is Arm.PAUSE else DESIGN.enforce_s


@pytest.mark.parametrize("after_s", [10.0, 30.0])
@pytest.mark.parametrize("paused", [False, True])
def test_a_pause_of_an_operator_ends_it_and_stays(paused: bool, after_s: float) -> None:
    agent = MadeAgent()
    begin_s = first_pause_s() if paused else DESIGN.enforce_s - first_pause_s()
    # `sweetpoint pause` replaces the pause of everything that there is.
    agent.at = [(1000 + begin_s + after_s, lambda: setattr(agent, "pauses", [9e9]))]
    with pytest.raises(TrialEndError, match="another command began or ended a pause"):
        list(runner(agent).run())
    assert agent.pauses == [9e9]


def test_a_resume_of_an_operator_ends_it() -> None:
    agent = MadeAgent()
    agent.at = [(1000 + first_pause_s() + 30, lambda: setattr(agent, "pauses", []))]
    with pytest.raises(TrialEndError, match="another command"):
        list(runner(agent).run())


@pytest.mark.parametrize(
    ("suffers", "doing"),
    [(lambda paused: 0.9 if paused else 0.1, "pausing"),
     (lambda paused: 0.1 if paused else 0.9, "enforcing")],
)  # fmt: skip
@pytest.mark.parametrize("first", [*Arm])
def test_harm_ends_it_within_two_blocks(
    suffers: Callable[[bool], float], doing: str, first: Arm
) -> None:
    agent = MadeAgent(suffers=suffers)
    seed = replace(DESIGN, seed=seed_of(first))
    with pytest.raises(HarmError, match=f"{doing} hurts web") as ended:
        list(runner(agent, seed).run())
    harmful = Arm.PAUSE if doing == "pausing" else Arm.ENFORCE
    assert ended.value.arm is harmful
    begins = [at for at, what in agent.log if (what == "pause") is (harmful is Arm.PAUSE)]
    last = [at for at in begins if at < agent.now - DESIGN.washout_s][-1]
    assert ended.value.began_s == pytest.approx(last, abs=2.0)
    # Two blocks of each arm, and less than two whole ones of the harmful one.
    assert agent.suffered_s < 0.9 * 2 * 60 + 0.1 * 2 * 60
    assert agent.now < 1000 + 4 * 60
    assert agent.pauses == []


def seed_of(first: Arm) -> int:
    """Return a seed with which the first two pairs begin with *first*: the worst case."""
    return next(
        seed
        for seed in itertools.count()
        if [order[0] for order in replace(DESIGN, seed=seed).order()[:2]] == [first] * 2
    )


def test_a_harm_that_is_allowed_does_not_end_it() -> None:
    agent = MadeAgent(suffers=lambda paused: 1.0 if paused else 0.0)
    assert len([*runner(agent, most_harm=1.0).run()]) == DESIGN.pairs
    # The last tick of a block may end after it.
    agent = MadeAgent(suffers=lambda paused: 1.01 if paused else 0.0)
    assert len([*runner(agent, most_harm=1.0).run()]) == DESIGN.pairs


WITH_POLICY = replace(DESIGN, policy="canary")


def test_without_its_policy_a_service_has_what_it_has_without_the_trial() -> None:
    """So the trial of a policy that helps much is not ended by how much it helps."""
    agent = MadeAgent(suffers=lambda without: 0.9 if without else 0.0, policy="canary")
    assert len([*runner(agent, WITH_POLICY).run()]) == DESIGN.pairs
    agent = MadeAgent(suffers=lambda without: 0.0 if without else 0.9, policy="canary")
    with pytest.raises(HarmError, match="enforcing with canary hurts web"):
        list(runner(agent, WITH_POLICY).run())


def test_a_policy_is_in_force_in_one_arm_and_not_in_the_other() -> None:
    agent = MadeAgent(policy="canary", lag_s=1.0)
    pairs = [*runner(agent, WITH_POLICY).run()]
    assert len(pairs) == DESIGN.pairs
    for pair in pairs:
        assert pair.enforce.suffered_ratio["web"] == pytest.approx(0.1, abs=1e-6)
        assert pair.pause.suffered_ratio["web"] == pytest.approx(0.5, abs=1e-6)
    assert agent.pauses == []


def test_an_agent_that_knows_the_pause_and_keeps_the_policy_is_not_measured() -> None:
    agent = MadeAgent(policy="canary", leaves=False)
    with pytest.raises(TrialEndError, match="did not leave policy canary within 30 s"):
        list(runner(agent, WITH_POLICY).run())
    assert agent.pauses == []


@pytest.mark.parametrize("after_s", [10.0, 30.0])
def test_a_policy_that_ends_meanwhile_ends_the_trial(after_s: float) -> None:
    agent = MadeAgent(policy="canary")
    begin_s = DESIGN.enforce_s - first_pause_s()
    agent.at = [(1000 + begin_s + after_s, lambda: setattr(agent, "policy", "other"))]
    with pytest.raises(TrialEndError, match="or policy canary began or ended"):
        list(runner(agent, WITH_POLICY).run())


AGAINST = replace(WITH_POLICY, candidate="d" * 64)


def with_candidate(**fields: Any) -> MadeAgent:
    return MadeAgent(policy="canary", digest="d" * 64, **fields)


@pytest.mark.parametrize("lag_s", [0.0, 4.0])
def test_a_candidate_is_in_force_in_one_arm_and_nothing_is_paused(lag_s: float) -> None:
    changes = [{"key": "law.find_harm", "value": False, "without": True}]
    agent = with_candidate(lag_s=lag_s, changes=changes)
    ends = []
    pause = agent.pause

    def noted(until_s: float) -> None:
        ends.append(until_s - agent.now)
        pause(until_s)

    agent.pause = noted  # type: ignore[method-assign]
    trial = runner(agent, AGAINST)
    pairs = [*trial.run()]
    assert len(pairs) == DESIGN.pairs
    for pair in pairs:
        assert pair.enforce.suffered_ratio["web"] == pytest.approx(0.1, abs=1e-6)
        assert pair.pause.suffered_ratio["web"] == pytest.approx(0.5, abs=1e-6)
    assert ends == [pytest.approx(100.0)] * DESIGN.pairs
    assert agent.pauses == []
    assert trial.results("n1").changes == (("law.find_harm", "false", "true"),)


@pytest.mark.parametrize("ended", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("at_s", [5.0, 35.0, 61.0, 100.0, 200.0])
def test_whatever_ends_the_trial_ends_the_candidate(
    ended: type[BaseException], at_s: float
) -> None:
    agent = with_candidate()

    def end() -> None:
        raise ended

    agent.at = [(1000 + at_s, end)]
    with pytest.raises(ended):
        list(runner(agent, AGAINST).run())
    assert agent.pauses == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("digest", "e" * 64), ("pauses", [9e9]), ("pauses", [])],
)
@pytest.mark.parametrize("after_s", [10.0, 30.0])
def test_another_candidate_or_none_ends_the_trial(field: str, value: Any, after_s: float) -> None:
    agent = with_candidate()
    begin_s = DESIGN.enforce_s - first_pause_s()  # of the first block with the candidate
    agent.at = [(1000 + begin_s + after_s, lambda: setattr(agent, field, value))]
    with pytest.raises(TrialEndError, match="or policy canary began or ended; a restart"):
        list(runner(agent, AGAINST).run())


def test_the_candidate_of_another_trial_ends_one_without() -> None:
    agent = MadeAgent()
    page = agent.page

    def with_another() -> dict[str, Any] | None:
        found = page()
        if found is not None and agent.now > 1030:
            found["policies"]["candidate"] = {"digest": "d" * 64, "until_s": 9e9}
        return found

    agent.page = with_another  # type: ignore[method-assign]
    with pytest.raises(TrialEndError, match="another command"):
        list(runner(agent).run())


def test_harm_names_the_arm_of_a_policy() -> None:
    agent = MadeAgent(policy="canary", suffers=lambda paused: 0.1 if paused else 0.9)
    with pytest.raises(TrialEndError, match="enforcing with canary hurts web"):
        list(runner(agent, WITH_POLICY).run())


WAITS_S = 3 * 120 + 30.0  # in the fourth pair


def change_at(agent: MadeAgent, at_s: float, **fields: Any) -> None:
    """Change *fields* of *agent* at *at_s* after the start."""

    def change() -> None:
        for name, value in fields.items():
            setattr(agent, name, value)

    agent.at.append((1000 + at_s, change))


@pytest.mark.parametrize("design", [DESIGN, WITH_POLICY])
@pytest.mark.parametrize("in_block_s", [5.0, 30.0, 59.0, 65.0, 119.0])
def test_pairs_of_another_configuration_do_not_count(design: Design, in_block_s: float) -> None:
    agent = MadeAgent(policy=design.policy)
    change_at(agent, 360 + in_block_s, config="two")
    trial = runner(agent, design)
    assert len([*trial.run()]) == DESIGN.pairs - 1
    assert (trial.left_out, len(trial.pairs), trial.lost) == (3, 2, 1)
    assert min(block.began_s for pair in trial.pairs for block in pair) >= 1360 + in_block_s
    assert agent.pauses == []


def test_a_change_between_two_pairs_costs_none_of_those_that_follow() -> None:
    agent = MadeAgent()
    trial = runner(agent)
    for number, _ in enumerate(trial.run(), 1):
        agent.config = "one" if number < 2 else "two"
    assert (trial.left_out, len(trial.pairs), trial.lost) == (2, DESIGN.pairs - 2, 0)


def test_what_a_policy_does_is_that_of_the_present_configuration() -> None:
    agent = MadeAgent(policy="canary", replaces={"default": "fast"})
    change_at(agent, WAITS_S, config="two", replaces={"default": "slow"})
    trial = runner(agent, WITH_POLICY)
    found = [trial.comparison.replaces for _ in trial.run()]
    assert found == [{"default": "fast"}] * 3 + [{"default": "slow"}] * 2


def test_blocks_of_another_configuration_are_no_measure_of_harm() -> None:
    """Without a policy the service suffers more from the change on, in both arms."""
    agent = MadeAgent(suffers=lambda _: 0.9 if agent.config == "two" else 0.1)
    change_at(agent, 360 - 0.5, config="two")
    trial = runner(agent)
    assert len([*trial.run()]) >= DESIGN.pairs - 2
    assert trial.left_out in (2, 3)


def test_another_policy_that_begins_costs_one_pair() -> None:
    agent = MadeAgent(policy="canary")
    change_at(agent, WAITS_S, others=[])
    trial = runner(agent, WITH_POLICY)
    assert len([*trial.run()]) == DESIGN.pairs - 1
    assert (trial.left_out, len(trial.pairs), trial.lost) == (0, DESIGN.pairs - 1, 1)


def restart(agent: MadeAgent) -> None:
    agent.ran_s = agent.suffered_s = 0.0


def test_a_restart_of_the_agent_costs_one_pair() -> None:
    agent = MadeAgent()
    agent.at = [(1000 + 40.0, lambda: restart(agent))]
    trial = runner(agent)
    assert len([*trial.run()]) == DESIGN.pairs - 1
    assert trial.lost == 1
    assert agent.pauses == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": False}, "did not answer for 30 s"),
        ({"mode": "observe"}, "in mode observe"),
    ],
)
def test_an_agent_that_cannot_be_tried_any_more(change: dict[str, Any], message: str) -> None:
    agent = MadeAgent()

    def apply() -> None:
        for name, value in change.items():
            setattr(agent, name, value)

    agent.at = [(1000 + 30.0, apply)]
    with pytest.raises(TrialEndError, match=message):
        list(runner(agent).run())
    assert agent.pauses == []


def test_an_agent_that_does_not_obey() -> None:
    agent = MadeAgent()
    agent.pause = lambda until_s: None  # type: ignore[method-assign]
    with pytest.raises(TrialEndError, match="did not pause within 30 s"):
        list(runner(agent).run())
