# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The summary of a trial in an annotation: what comes back, and what is refused."""

from dataclasses import replace
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.rollout.summary import MAX_CHARS, SummaryError, decode, encode
from controller.trial.analysis import analyse
from controller.trial.blocks import Pair
from tests.support.rollout import pairs_from

BEGIN_S = 1.8e9
GOOD = [1, [[1.0, [1.0, 2.0], {"web": [0.1, 0.2]}]]]


def test_what_comes_back_has_the_same_verdicts() -> None:
    pairs = pairs_from(BEGIN_S, 20)
    told = [(each.name, each.verdict, each.pairs) for each in analyse([decode(encode(pairs))])]
    assert told == [(each.name, each.verdict, each.pairs) for each in analyse([pairs])]


def test_the_last_pairs_are_kept_and_each_service_that_suffers_most() -> None:
    many = {f"{'x' * 200}{number:02}": number / 100 for number in range(20)} | {"y": 0.5}
    pairs = [
        Pair(*(replace(block, suffered_ratio=many) for block in pair))
        for pair in pairs_from(BEGIN_S, 100)
    ]
    text = encode(pairs)
    assert len(text) <= MAX_CHARS
    found = decode(text)
    assert found[-1].enforce.began_s == pairs[-1].enforce.began_s
    assert 1 <= len(found) <= 64
    assert found[0].enforce.suffered_ratio["y"] == 0.5


def test_a_service_that_one_block_lacks_stays_without_figure() -> None:
    (pair,) = pairs_from(BEGIN_S, 1)
    pair = pair._replace(enforce=replace(pair.enforce, suffered_ratio={}))
    (found,) = decode(encode([pair]))
    assert (dict(found.enforce.suffered_ratio), [*found.pause.suffered_ratio]) == ({}, ["web"])


ROW = '[1.0,[1.0,2.0],{"web":[0.1,0.2]}]'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[2,[]]",
        "[1,{}]",
        "[" * 10_000,
        "x" * (MAX_CHARS + 1),
        f"[1,[{ROW},{ROW}]]",  # the same pair twice
        f"[1,[{','.join(f'[{n},[1,1],{{}}]' for n in range(65))}]]",
        "[1,[[1,[1],{}]]]",
        "[1,[[1,[1,1,1],{}]]]",
        "[1,[[1,[1,-1],{}]]]",
        "[1,[[1,[1,NaN],{}]]]",
        "[1,[[1,[1,1e999],{}]]]",
        f"[1,[[1,[1,{'9' * 400}],{{}}]]]",
        "[1,[[1,[1,true],{}]]]",
        '[1,[[1,"11",{}]]]',
        "[1,[[1,[1,1],[]]]]",
        '[1,[[1,[1,1],{"web":[0,1.1]}]]]',
        '[1,[[1,[1,1],{"web":[0]}]]]',
        f'[1,[[1,[1,1],{{"{"w" * 129}":[0,0]}}]]]',
        "[1,[[1e15,[1,1],{}]]]",
        "[1,[7]]",
    ],
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(SummaryError):
        decode(text)


def test_the_text_that_the_refused_ones_are_made_of_is_valid() -> None:
    assert len(decode(f"[1,[{ROW}]]")) == len(decode(json.dumps(GOOD))) == 1


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(_json)
def test_any_json_is_a_summary_or_refused(rows: object) -> None:
    try:
        pairs = decode(json.dumps([1, rows]))
    except SummaryError:
        return
    analyse([pairs])
