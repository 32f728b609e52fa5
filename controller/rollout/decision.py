# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The decision of a rollout: from the stored state and the figures of nodes to the next state.

Pure: time is an argument. Each step follows from what is stored, so a controller that is killed
between two writes goes on where it stood.

Each node has one verdict, and the median of them counts. Whatever fewer than half of the nodes with
a verdict claim, it lies between the worst and the best verdict of the others. How many pairs a node
has gives it no weight.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from controller.core.units import NS_PER_SEC, count
from controller.rollout.spec import Gain, Proposal, RolloutModel
from controller.rollout.state import Phase, State, enter, note
from controller.rollout.summary import Trial
from controller.trial.analysis import Kind, Verdict, analyse

__all__ = ("Seen", "Write", "applied", "reasons", "step", "wanted")

_ORDER = (Verdict.WORSE, Verdict.NO_DIFFERENCE, Verdict.BETTER)
_WAITING, _LEFT_OUT = "not judged", "left out"
# Reason of a roll-back that a person asked for.
_ASKED = "Asked"
_GONE = "CandidateGone", "the profiles no longer have the candidate"


class Write(StrEnum):
    """What the profiles need.

    ``TRY``: a policy is in force where it selects. ``RESTORE``: what a promotion replaced comes
    back, and the candidate goes.
    """

    TRY = "try"
    PROMOTE = "promote"
    REMOVE = "remove"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the cluster shows: the proposal, and the trial of each canary node.

    ``proposal`` is ``None``: the profiles have no candidate. ``left_out`` has the reason for each
    node whose trial does not count; in ``nodes`` it has one without pairs. ``asked``: a person asks
    for the roll-back.
    """

    proposal: Proposal | None
    nodes: Mapping[str, Trial]
    left_out: Mapping[str, str] = field(default_factory=dict)
    asked: bool = False


def step(state: State | None, seen: Seen, now_s: float, passed_s: float) -> State | None:
    """Return the state after *state*; ``None``: there is no rollout.

    :param now_s: seconds since 1970; they date what happens, and decide which pairs are new.
    :param passed_s: seconds of the monotonic clock since the last look, 0 at the first one.
        Deadlines count these, so that a clock that is set ends no soak.
    """
    proposal = seen.proposal
    if proposal is None:
        if state is None or (state.phase.is_end and state.applied):
            return state
        if state.phase is Phase.ROLLED_BACK:
            return applied(state, now_s)  # it was removed, and this was not noted
        return applied(enter(state, Phase.ROLLED_BACK, now_s, *_GONE), now_s)
    if state is None or state.digest != proposal.digest:
        state = State(digest=proposal.digest, phase=Phase.PENDING, since_s=now_s)
        state = enter(state, Phase.PENDING, now_s, "NewCandidate", "the candidate is to be tried")
        if not seen.asked:
            return state
    if seen.asked and state.phase is not Phase.ROLLED_BACK:
        state = replace(state, applied=False)
        return enter(state, Phase.ROLLED_BACK, now_s, _ASKED, f"asked for while {state.phase}")
    if state.phase.is_end:
        return state
    if state.phase is Phase.PENDING:
        return _pending(state, proposal.spec, seen, now_s)
    state = replace(state, in_phase_s=state.in_phase_s + max(0.0, passed_s))
    return _judged(state, proposal.spec, seen, now_s)


def wanted(state: State | None, seen: Seen) -> Write | None:
    """Return what the profiles need in *state*, ``None``: nothing.

    A candidate that was rolled back is removed again if it returns unchanged.
    """
    if state is None or seen.proposal is None or seen.proposal.digest != state.digest:
        return None
    if not state.phase.is_end:
        return Write.TRY if isinstance(seen.proposal.names, str) else None
    if state.phase is Phase.ROLLED_BACK:
        is_asked = any(each.reason == _ASKED for each in state.conditions)
        return Write.RESTORE if is_asked else Write.REMOVE
    return Write.PROMOTE if state.phase is Phase.PROMOTED and not state.applied else None


def applied(state: State, now_s: float) -> State:
    """Return *state*, an end, after the profiles were written."""
    first = state.conditions[0]
    return note(replace(state, applied=True), now_s, first.reason, first.message)


def _pending(state: State, spec: RolloutModel, seen: Seen, now_s: float) -> State:
    pool = count(len(seen.nodes), "canary node")
    if len(seen.nodes) < spec.least_nodes:
        return note(state, now_s, "TooFewNodes", f"{pool} of {spec.least_nodes}")
    state = replace(state, canary_since_s=now_s)
    return enter(state, Phase.CANARY, now_s, "Trying", f"the candidate is tried on {pool}")


def _judged(state: State, spec: RolloutModel, seen: Seen, now_s: float) -> State:
    verdicts = [_node_verdict(spec, trial, state.canary_since_s) for trial in seen.nodes.values()]
    given = sorted(_ORDER.index(each) for each in verdicts if each is not None)
    counts = {str(each): given.count(place) for place, each in enumerate(_ORDER)}
    left_out = len(seen.left_out)
    waiting = verdicts.count(None) - left_out
    state = replace(state, nodes={**counts, _WAITING: waiting, _LEFT_OUT: left_out})
    # With an even number of nodes the worse one of the two in the middle.
    median = _ORDER[given[(len(given) - 1) // 2]] if len(given) >= spec.least_nodes else None
    told = ", ".join(f"{name}: {number}" for name, number in state.nodes.items())
    told += "".join(f"; {each}" for each in reasons(seen.left_out))
    if median is Verdict.WORSE:
        return enter(state, Phase.ROLLED_BACK, now_s, "Worse", f"the median node is worse; {told}")
    good = median is Verdict.BETTER or (median is not None and spec.gain is Gain.NO_HARM)
    soaking = state.phase is Phase.SOAKING
    if good and not soaking:
        return enter(state, Phase.SOAKING, now_s, "CriterionMet", told)
    soak_s = spec.soak / NS_PER_SEC if soaking else 0.0
    if good and state.in_phase_s >= soak_s and _fresh(seen, state.since_s) >= spec.least_nodes:
        return enter(state, Phase.PROMOTED, now_s, "CriterionHeld", told)
    if state.in_phase_s >= soak_s + spec.within / NS_PER_SEC:
        return enter(state, Phase.ROLLED_BACK, now_s, "NoVerdict", f"not in time; {told}")
    return note(state, now_s, "Soaking" if soaking else "Trying", told)


def reasons(left_out: Mapping[str, str]) -> list[str]:
    """Return why the trials of nodes are left out, each reason with the number of its nodes."""
    numbers = Counter(left_out.values())
    return [f"{count(numbers[reason], 'node')} left out: {reason}" for reason in sorted(numbers)]


def _node_verdict(spec: RolloutModel, trial: Trial, since_s: float) -> Verdict | None:
    """Return the verdict of one node by its pairs since *since_s*, ``None``: they are too few."""
    if trial.hurt_s is not None and trial.hurt_s >= since_s:
        return Verdict.WORSE
    pairs = [pair for pair in trial.pairs if pair.enforce.began_s >= since_s]
    if len(pairs) < spec.least_pairs:
        return None
    findings = analyse([pairs])
    services = {each.verdict for each in findings if each.kind is Kind.TIME}
    lost = any(each.kind is Kind.WORK and each.effect[2] < spec.least_work for each in findings)
    if lost or Verdict.WORSE in services:
        return Verdict.WORSE
    return Verdict.BETTER if Verdict.BETTER in services else Verdict.NO_DIFFERENCE


def _fresh(seen: Seen, since_s: float) -> int:
    """Return the number of nodes with a pair that began after *since_s*."""
    return sum(
        any(pair.enforce.began_s >= since_s for pair in trial.pairs)
        for trial in seen.nodes.values()
    )
