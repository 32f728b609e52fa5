# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a rollout decides, from what is stored and what nodes tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import pytest

from controller.rollout.decision import Seen, Write, applied, step, wanted
from controller.rollout.spec import promoted_text, read_proposal
from controller.rollout.state import Phase, State, read, text
from controller.rollout.summary import Trial
from controller.trial.blocks import Block, Pair
from tests.support.rollout import CANDIDATE, CURRENT, SPEC, pairs_from, profile, tried

BEGIN_S = 1.8e9
LOOK_S = 30.0
NODES = ("n1", "n2", "n3", "n4", "n5")


@dataclass
class Cluster:
    """Stored objects and nodes; each look is that of a controller that may be killed in it."""

    less: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(NODES, 0.3))
    spec: str = SPEC
    profiles: dict[str, str] = field(
        default_factory=lambda: {"default.yaml": CURRENT, "fast.yaml": CANDIDATE}
    )
    stored: str | None = None
    now_s: float = BEGIN_S
    phases: list[Phase] = field(default_factory=list)
    measured_until_s: float = float("inf")
    hurt: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> State | None:
        return None if self.stored is None else read(self.stored)

    def nodes(self) -> dict[str, Trial]:
        """Every node has measured since a while before the rollout, as long as it measures.

        A trial on a node that is hurt has no pairs, and ended in the third minute.
        """
        count = int(min(self.now_s, self.measured_until_s) - BEGIN_S) // 60 + 20
        found = {
            name: tried(pairs_from(BEGIN_S - 1200, max(0, count), seed=number, less=less)[-64:])
            for number, (name, less) in enumerate(self.less.items())
        }
        found |= dict.fromkeys(self.left_out, Trial())
        return found | dict.fromkeys(self.hurt, tried((), BEGIN_S + 150))

    def look(self, passed_s: float = LOOK_S, kill_after: int = 3) -> None:
        """Look once; the controller is killed after *kill_after* of its three writes."""
        _, proposal = read_proposal({"rollout.yaml": self.spec}, self.profiles)
        seen = Seen(proposal=proposal, nodes=self.nodes(), left_out=self.left_out)
        after = step(self.state, seen, self.now_s, passed_s)
        write = wanted(after, seen)
        if kill_after < 1 or after is None:
            return
        self._store(after)
        if write is None or proposal is None or kill_after < 2:
            return
        if write is Write.PROMOTE:
            self.profiles["default.yaml"] = promoted_text(proposal)
        else:
            del self.profiles["fast.yaml"]
        if kill_after >= 3:
            self._store(applied(after, self.now_s))

    def _store(self, state: State) -> None:
        if not self.phases or self.phases[-1] is not state.phase:
            self.phases.append(state.phase)
        self.stored = text(state)

    def run(self, kills: Sequence[int] = (), most: int = 300) -> None:
        """Look every half minute until the end, killed in the first looks as *kills* says."""
        for number in range(most):
            killed = number < len(kills)
            self.look(0.0 if killed else LOOK_S, kills[number] if killed else 3)
            self.now_s += LOOK_S
            if (state := self.state) is not None and state.applied:
                return

    def condition(self, kind: str) -> tuple[str, str]:
        assert self.state is not None
        (found,) = (each for each in self.state.conditions if each.type == kind)
        return found.status, found.reason


FORWARD = [Phase.PENDING, Phase.CANARY, Phase.SOAKING, Phase.PROMOTED]


def test_a_candidate_that_gains_is_promoted_after_its_soak() -> None:
    cluster = Cluster()
    cluster.run()
    assert cluster.phases == FORWARD
    assert cluster.profiles["default.yaml"].splitlines()[0] == "name: default"
    assert "3ms" in cluster.profiles["default.yaml"]
    assert cluster.profiles["fast.yaml"] == CANDIDATE
    assert cluster.condition("Promoted") == ("True", "CriterionHeld")
    assert cluster.condition("Progressing") == ("False", "CriterionHeld")
    assert cluster.now_s - BEGIN_S >= 600  # the soak


def test_pairs_from_before_the_canary_do_not_count() -> None:
    cluster = Cluster(measured_until_s=BEGIN_S)
    cluster.run(most=20)
    assert cluster.phases == [Phase.PENDING, Phase.CANARY]
    assert cluster.state is not None
    assert cluster.state.nodes["not judged"] == 5


def test_a_candidate_that_hurts_is_removed() -> None:
    cluster = Cluster(less=dict.fromkeys(NODES, -0.3))
    cluster.run()
    assert cluster.phases == [Phase.PENDING, Phase.CANARY, Phase.ROLLED_BACK]
    assert cluster.profiles == {"default.yaml": CURRENT}
    assert cluster.condition("Promoted") == ("False", "Worse")


def test_harm_in_the_soak_rolls_back() -> None:
    cluster = Cluster()
    while Phase.SOAKING not in cluster.phases:
        cluster.run(most=1)
    cluster.less = dict.fromkeys(NODES, -0.3)
    cluster.run()
    assert cluster.phases == [*FORWARD[:3], Phase.ROLLED_BACK]
    assert cluster.profiles == {"default.yaml": CURRENT}


def test_a_candidate_that_takes_too_much_work_is_removed() -> None:
    spec = SPEC + "least_work: 100%\n"
    lost = Cluster(spec=spec)
    lost.nodes = lambda: {  # type: ignore[method-assign]
        name: tried([pair._replace(enforce=_with_less_work(pair)) for pair in trial.pairs])
        for name, trial in Cluster.nodes(lost).items()
    }
    lost.run()
    assert lost.condition("Promoted") == ("False", "Worse")


def _with_less_work(pair: Pair) -> Block:
    return replace(pair.enforce, best_effort_cpus=pair.enforce.best_effort_cpus / 2)


@pytest.mark.parametrize(("gain", "end"), [("better", "NoVerdict"), ("no-harm", "CriterionHeld")])
def test_no_difference_is_promoted_only_if_that_is_enough(gain: str, end: str) -> None:
    cluster = Cluster(less=dict.fromkeys(NODES, 0.0), spec=f"{SPEC}gain: {gain}\n")
    cluster.run()
    assert cluster.condition("Promoted")[1] == end


@pytest.mark.parametrize("lie", [-0.39, 0.0, 0.39])
@pytest.mark.parametrize("truth", [-0.3, 0.3])
@pytest.mark.parametrize("liars", [1, 2])
def test_nodes_that_lie_change_nothing(truth: float, lie: float, liars: int) -> None:
    honest, lied = (
        Cluster(less={**dict.fromkeys(NODES, truth), **dict.fromkeys(NODES[:number], lie)})
        for number in (0, liars)
    )
    honest.run()
    lied.run()
    assert lied.phases == honest.phases
    assert lied.profiles == honest.profiles


WORSE, SAME, BETTER = -0.3, 0.0, 0.3
_SAID = {Phase.ROLLED_BACK: WORSE, Phase.CANARY: SAME, Phase.SOAKING: BETTER}


@given(
    st.lists(st.sampled_from([WORSE, SAME, BETTER]), min_size=2, max_size=4),
    st.lists(st.sampled_from([WORSE, SAME, BETTER]), min_size=1, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_the_fewer_cannot_lead_beyond_what_the_others_say(
    honest: list[float], liars: list[float]
) -> None:
    """One look, with exact figures; those that lie publish whatever they like."""
    liars = liars[: len(honest) - 1]
    assume(len(honest) + len(liars) >= 3)
    nodes = {f"n{place}": tried(_exactly(less)) for place, less in enumerate(honest + liars)}
    _, proposal = read_proposal({"rollout.yaml": SPEC}, {"fast.yaml": CANDIDATE})
    assert proposal is not None
    seen = Seen(proposal=proposal, nodes=nodes)
    state = State(digest=proposal.digest, phase=Phase.CANARY, since_s=BEGIN_S)
    after = step(state, seen, BEGIN_S, 0.0)
    assert after is not None
    assert min(honest) <= _SAID[after.phase] <= max(honest)


def _exactly(less: float) -> list[Pair]:
    return [
        pair._replace(enforce=replace(pair.enforce, suffered_ratio={"web": before - less}))
        for pair in pairs_from(BEGIN_S, 6)
        for before in [pair.pause.suffered_ratio["web"]]
    ]


@pytest.mark.parametrize("truth", [-0.3, 0.3])
def test_a_node_with_huge_claims_changes_nothing(truth: float) -> None:
    """It has as many pairs as an annotation may have, each with the largest figures."""
    lies = {
        claim: [
            Pair(
                replace(pair.enforce, suffered_ratio={"web": float(claim < 0)}),
                replace(pair.pause, suffered_ratio={"web": float(claim > 0)}),
            )
            for pair in pairs_from(4e9, 64)  # long after now, so all of them count
        ]
        for claim in (-1, 1)
    }
    assert all(len(lie) == 64 for lie in lies.values())
    honest = Cluster(less=dict.fromkeys(NODES[:3], truth))
    honest.run()
    lied = Cluster(less=dict.fromkeys(NODES[:3], truth))
    nodes = lied.nodes
    lie = tried(lies[-1], 4e9) if truth > 0 else tried(lies[1])
    lied.nodes = lambda: nodes() | {"n1": lie}  # type: ignore[method-assign]
    lied.run()
    assert lied.phases == honest.phases
    assert lied.profiles == honest.profiles


def test_harm_that_ended_the_trials_rolls_back_without_further_pairs() -> None:
    cluster = Cluster(less={}, hurt=NODES)
    cluster.run(most=20)
    assert cluster.phases == [Phase.PENDING, Phase.CANARY, Phase.ROLLED_BACK]
    assert cluster.condition("Promoted") == ("False", "Worse")
    assert cluster.profiles == {"default.yaml": CURRENT}


@pytest.mark.parametrize(
    ("hurt", "end"), [(NODES[:2], Phase.PROMOTED), (NODES[:3], Phase.ROLLED_BACK)]
)
def test_harm_counts_as_one_verdict_of_its_node(hurt: Sequence[str], end: Phase) -> None:
    cluster = Cluster(hurt=hurt)
    cluster.run()
    assert cluster.phases[-1] is end


def test_harm_from_before_the_canary_does_not_count() -> None:
    cluster = Cluster(hurt=NODES)
    cluster.now_s = BEGIN_S + 200
    cluster.run(most=20)
    assert cluster.phases == [Phase.PENDING, Phase.CANARY]


def test_trials_that_are_left_out_are_no_verdict_and_are_told() -> None:
    cluster = Cluster(left_out={"n4": "one", "n5": "two", "n6": "two"})
    cluster.run()
    assert cluster.phases == FORWARD
    state = cluster.state
    assert state is not None
    assert (state.nodes["better"], state.nodes["not judged"], state.nodes["left out"]) == (3, 0, 3)
    message = state.conditions[0].message
    assert message.endswith("left out: 3; 1 node left out: one; 2 nodes left out: two")
    few = Cluster(left_out=dict.fromkeys(NODES[:3], "one"))
    few.run()
    assert few.condition("Promoted") == ("False", "NoVerdict")


def test_too_few_nodes_are_waited_for() -> None:
    cluster = Cluster(less={"n1": 0.3, "n2": 0.3})
    cluster.run(most=50)
    assert cluster.phases == [Phase.PENDING]
    assert cluster.condition("Progressing") == ("True", "TooFewNodes")


@given(st.lists(st.integers(0, 2), max_size=40), st.sampled_from([-0.3, 0.3]))
@settings(max_examples=10, deadline=None)
def test_a_controller_that_is_killed_anywhere_comes_to_the_same_end(
    kills: list[int], less: float
) -> None:
    calm, killed = (Cluster(less=dict.fromkeys(NODES, less)) for _ in range(2))
    calm.run()
    killed.run(kills)
    assert killed.phases == calm.phases
    assert killed.profiles == calm.profiles
    assert killed.condition("Promoted") == calm.condition("Promoted")


@pytest.mark.parametrize("less", [-0.3, 0.3])
@pytest.mark.parametrize("kill_after", [1, 2])
def test_a_controller_that_is_killed_at_the_end_ends(less: float, kill_after: int) -> None:
    calm, killed = (Cluster(less=dict.fromkeys(NODES, less)) for _ in range(2))
    calm.run()
    while not (state := killed.state) or not state.phase.is_end:
        killed.look(kill_after=kill_after)
        killed.now_s += LOOK_S
    assert not state.applied
    killed.run()
    assert killed.profiles == calm.profiles
    assert killed.condition("Promoted") == calm.condition("Promoted")


@pytest.mark.parametrize("jump_s", [-1e8, 1e8])
def test_a_clock_that_is_set_ends_no_soak(jump_s: float) -> None:
    cluster = Cluster()
    while Phase.SOAKING not in cluster.phases:
        cluster.run(most=1)
    nodes = cluster.nodes()
    cluster.nodes = lambda: nodes  # type: ignore[method-assign]
    cluster.now_s += jump_s
    cluster.look(LOOK_S)
    assert cluster.phases == FORWARD[:3]
    assert cluster.state is not None
    assert cluster.state.in_phase_s == LOOK_S


def test_a_soak_without_new_pairs_promotes_nothing() -> None:
    cluster = Cluster()
    while Phase.SOAKING not in cluster.phases:
        cluster.run(most=1)
    cluster.measured_until_s = cluster.now_s - LOOK_S  # the pairs of the last look
    cluster.run()
    assert cluster.phases == [*FORWARD[:3], Phase.ROLLED_BACK]
    assert cluster.condition("Promoted") == ("False", "NoVerdict")


def test_a_candidate_that_was_judged_is_removed_again_and_another_one_tried() -> None:
    cluster = Cluster(less=dict.fromkeys(NODES, -0.3))
    cluster.run()
    cluster.profiles["fast.yaml"] = CANDIDATE  # as by an upgrade of the chart
    cluster.look()
    assert "fast.yaml" not in cluster.profiles
    cluster.profiles["fast.yaml"] = profile("fast", 4)
    cluster.look()
    assert cluster.phases[-1] is Phase.PENDING
    assert cluster.condition("Promoted")[0] == "Unknown"


def test_a_candidate_that_somebody_removes_is_rolled_back() -> None:
    cluster = Cluster()
    while Phase.SOAKING not in cluster.phases:
        cluster.run(most=1)
    del cluster.profiles["fast.yaml"]
    cluster.run()
    assert cluster.condition("Promoted") == ("False", "CandidateGone")
    assert cluster.profiles == {"default.yaml": CURRENT}


def test_without_a_candidate_there_is_no_rollout() -> None:
    cluster = Cluster(profiles={"default.yaml": CURRENT})
    cluster.run(most=3)
    assert cluster.stored is None


def test_a_promotion_is_written_once() -> None:
    cluster = Cluster()
    cluster.run()
    cluster.profiles["default.yaml"] = CURRENT  # somebody takes it back
    stored = cluster.stored
    cluster.run(most=5)
    assert cluster.profiles["default.yaml"] == CURRENT
    assert cluster.stored == stored
