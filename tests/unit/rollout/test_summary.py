# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The summary of a trial in an annotation: what comes back, and what is refused."""

from dataclasses import replace
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.config.yaml_document import ConfigError
from controller.rollout.evidence import trial_of
from controller.rollout.spec import Proposal, read_proposal
from controller.rollout.summary import MAX_CHARS, SummaryError, Trial, decode, encode
from controller.trial.analysis import analyse
from controller.trial.blocks import Pair
from tests.support.rollout import CANDIDATE, pairs_from, tried

BEGIN_S = 1.8e9
HEAD: dict[str, object] = {
    "policy": "canary",
    "replaces": {"default": "fast"},
    "also": [],
    "hurt_s": None,
}
GOOD = [2, HEAD, [[1.0, [1.0, 2.0], {"web": [0.1, 0.2]}]]]


def test_what_comes_back_has_the_same_verdicts() -> None:
    pairs = pairs_from(BEGIN_S, 20)
    back = decode(encode(tried(pairs)))
    told = [(each.name, each.verdict, each.pairs) for each in analyse([back.pairs])]
    assert told == [(each.name, each.verdict, each.pairs) for each in analyse([pairs])]


def test_the_last_pairs_are_kept_and_each_service_that_suffers_most() -> None:
    many = {f"{'x' * 200}{number:02}": number / 100 for number in range(20)} | {"y": 0.5}
    pairs = [
        Pair(*(replace(block, suffered_ratio=many) for block in pair))
        for pair in pairs_from(BEGIN_S, 100)
    ]
    text = encode(tried(pairs))
    assert len(text) <= MAX_CHARS
    found = decode(text).pairs
    assert found[-1].enforce.began_s == pairs[-1].enforce.began_s
    assert 1 <= len(found) <= 64
    assert found[0].enforce.suffered_ratio["y"] == 0.5


def test_a_service_that_one_block_lacks_stays_without_figure() -> None:
    (pair,) = pairs_from(BEGIN_S, 1)
    pair = pair._replace(enforce=replace(pair.enforce, suffered_ratio={}))
    (found,) = decode(encode(tried([pair]))).pairs
    assert (dict(found.enforce.suffered_ratio), [*found.pause.suffered_ratio]) == ({}, ["web"])


@pytest.mark.parametrize(
    "trial",
    [
        Trial(),
        tried(()),
        tried((), 1.8e9),
        Trial(policy="night-1", also=("law.find_harm=false", "reserve=0cpu")),
        Trial(policy="p" * 63, replaces={f"a{n}" + "x" * 60: "b" * 63 for n in range(64)}),
    ],
)
def test_what_was_compared_comes_back(trial: Trial) -> None:
    pairs = pairs_from(BEGIN_S, 2)
    found = decode(encode(replace(trial, pairs=pairs)))
    assert replace(found, pairs=()) == trial
    assert len(found.pairs) == 2


ROW = '[1.0,[1.0,2.0],{"web":[0.1,0.2]}]'


def summary(rows: str, **head: object) -> str:
    return f"[2,{json.dumps(HEAD | head)},{rows}]"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "7",
        "[3,[]]",
        "[2,[]]",
        summary("{}"),
        "[" * 10_000,
        "x" * (MAX_CHARS + 1),
        summary(f"[{ROW},{ROW}]"),  # the same pair twice
        summary(f"[{','.join(f'[{n},[1,1],{{}}]' for n in range(65))}]"),
        summary("[[1,[1],{}]]"),
        summary("[[1,[1,1,1],{}]]"),
        summary("[[1,[1,-1],{}]]"),
        summary("[[1,[1,NaN],{}]]"),
        summary("[[1,[1,1e999],{}]]"),
        summary(f"[[1,[1,{'9' * 400}],{{}}]]"),
        summary("[[1,[1,true],{}]]"),
        summary('[[1,"11",{}]]'),
        summary("[[1,[1,1],[]]]"),
        summary('[[1,[1,1],{"web":[0,1.1]}]]'),
        summary('[[1,[1,1],{"web":[0]}]]'),
        summary(f'[[1,[1,1],{{"{"w" * 129}":[0,0]}}]]'),
        summary("[[1e15,[1,1],{}]]"),
        summary("[7]"),
        summary("[]", other=1),
        "[2,{},[]]",
        "[2,null,[]]",
        f"[2,{json.dumps(HEAD)},[],[]]",
    ],
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(SummaryError):
        decode(text)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("policy", [None, 0, [], "A", "a\n", "a\x1b[31m", "a" * 64, "\u202ea"]),
        ("replaces", [None, [], "x", {"a": None}, {"a": "B"}, {"a/b": "c"}, {"": "a"}]),
        ("replaces", [{f"a{n}": "b" for n in range(65)}]),
        ("also", [None, 1, [1], ["a"], ["A=1"], ["a" * 64 + "="], ["a=" + "1" * 65], ["a=1"] * 33]),
        ("hurt_s", [True, "1", -1, 1e15, [], float("nan")]),
    ],
)
def test_a_hostile_head_is_refused(key: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(SummaryError, match="not a summary of a trial"):
            decode(summary("[]", **{key: value}))


def test_the_text_that_the_refused_ones_are_made_of_is_valid() -> None:
    assert decode(summary(f"[{ROW}]")) == decode(json.dumps(GOOD))
    assert len(decode(json.dumps(GOOD)).pairs) == 1


def proposal(head: str) -> Proposal:
    """Return the proposal of a rollout with the candidate in *head*."""
    text = f"nodes: {{pool: canary}}\n{head}"
    _, found = read_proposal({"rollout.yaml": text}, {"fast.yaml": CANDIDATE})
    assert found is not None
    return found


SPEC = proposal("candidate: fast\nreplaces: default")
LIMITS = proposal("policy: {name: p, set: {reserve: 0cpu, kubernetes: {eviction: {per_hour: 6}}}}")
MODE = proposal("policy: {name: p, set: {mode: enforce}}")
OF_LIMITS = ["reserve=0cpu", "kubernetes.eviction.per_hour=6"]


@pytest.mark.parametrize(
    ("of", "text", "reason"),
    [
        (LIMITS, encode(Trial(pairs=pairs_from(BEGIN_S, 5))), "it needs --policy"),
        (LIMITS, summary("[]", replaces={}, also=[]), "does not set what the candidate sets"),
        (LIMITS, summary("[]", replaces={}, also=OF_LIMITS[:1]), "does not set what"),
        (LIMITS, summary("[]", replaces={}, also=[*OF_LIMITS, "a=b"]), "does not set what"),
        (LIMITS, summary("[]", also=OF_LIMITS), "does not set what the candidate sets"),
        (MODE, summary("[]"), "it needs enforcing and pausing"),
    ],
)
def test_a_trial_of_something_else_does_not_count_for_a_policy(
    of: Proposal, text: str, reason: str
) -> None:
    with pytest.raises(SummaryError, match=reason):
        trial_of(of, text)


def test_a_trial_of_the_policy_counts() -> None:
    assert trial_of(LIMITS, summary(f"[{ROW}]", replaces={}, also=OF_LIMITS)).pairs
    assert trial_of(MODE, encode(Trial(pairs=pairs_from(BEGIN_S, 5)))).pairs
    assert trial_of(LIMITS, None) == trial_of(MODE, "") == Trial()


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ("candidate: fast", "needs candidate and replaces, or a policy"),
        ("candidate: fast\npolicy: {name: p, set: {reserve: 0cpu}}", "neither candidate nor"),
        ("policy: {name: p, set: {}}", "must have at least one key"),
        ("policy: {name: p, set: {replace_profiles: {default: fast}}}", "rollout of its own"),
        ("policy: {name: p, set: {mode: observe}}", "compares enforce alone"),
        ("policy: {name: p, set: {mode: enforce, reserve: 0cpu}}", "compares enforce alone"),
        ("policy: {name: p, set: {tick: 1s}}", "a policy cannot set this key"),
        ("policy: {name: p, set: {kubernetes: {eviction: {per_hour: 61}}}}", "per_hour"),
        ("policy: {name: P, set: {reserve: 0cpu}}", "policy.name"),
    ],
)
def test_a_candidate_that_no_trial_can_judge_is_refused(head: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        proposal(head)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"[1,[{ROW}]]", "an older agent wrote it"),
        ("[1,[]]", "an older agent wrote it"),
        ("[3,{},[]]", "a version that is not known"),
        (encode(Trial(pairs=pairs_from(BEGIN_S, 5))), "it needs --policy"),
        (summary("[]", replaces={}), "does not replace this profile"),
        (summary("[]", replaces={"nginx": "fast"}), "does not replace this profile"),
        (summary("[]", replaces={"default": "slow"}), "does not replace this profile"),
        (summary("[]", replaces={"default": "fast", "b": "fast"}), "does not replace this profile"),
        (summary("[]", also=["reserve=0cpu"]), "sets other keys too"),
    ],
)
def test_a_trial_of_something_else_does_not_count(text: str, reason: str) -> None:
    with pytest.raises(SummaryError, match=reason):
        trial_of(SPEC, text)


def test_a_trial_of_the_candidate_counts_whatever_its_policy_is_called() -> None:
    assert trial_of(SPEC, summary(f"[{ROW}]", policy="another-name")).pairs
    assert trial_of(SPEC, None) == trial_of(SPEC, "") == Trial()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(_json, st.none() | st.sampled_from([*HEAD]), _json)
def test_any_json_is_a_summary_or_refused(rows: object, key: str | None, value: object) -> None:
    head = HEAD if key is None else {**HEAD, key: value}
    try:
        trial = decode(json.dumps([2, head, rows]))
    except SummaryError:
        return
    analyse([trial.pairs])
