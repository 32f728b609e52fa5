# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json
from pathlib import Path

import pytest

from controller.trial.blocks import (
    Arm,
    Change,
    Design,
    TrialError,
    Work,
    append,
    begin_anew,
    changes_of,
    load,
    start,
)
from tests.support.trial import noisy_pairs

DESIGN = Design.of(7200.0, 120.0, 20.0, 0.5, 7)


def test_a_design_has_as_many_pairs_as_there_is_room_for() -> None:
    assert (DESIGN.pairs, DESIGN.enforce_s, DESIGN.total_s) == (30, 120.0, 7200.0)
    seldom = Design.of(7200.0, 120.0, 20.0, 0.2, 7)
    assert (seldom.pairs, seldom.enforce_s, seldom.pause_s) == (12, 480.0, 120.0)
    assert (seldom.length_s(Arm.ENFORCE), seldom.length_s(Arm.PAUSE)) == (480.0, 120.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7200.0, 120.0, 20.0, 0.6), "--paused must be"),
        ((7200.0, 120.0, 20.0, 0.0), "--paused must be"),
        ((7200.0, 30.0, 20.0, 0.5), "--block must be at least twice as long as washout"),
        ((500.0, 120.0, 20.0, 0.5), "no room for 3 pairs of 240 s"),
    ],
)
def test_a_design_that_is_not_possible(
    arguments: tuple[float, float, float, float], message: str
) -> None:
    with pytest.raises(TrialError, match=message):
        Design.of(*arguments, 1)


def test_the_seed_decides_the_order() -> None:
    assert DESIGN.order() == Design.of(7200.0, 120.0, 20.0, 0.5, 7).order()
    firsts = {seed: [first for first, _ in Design.of(7200.0, 120.0, 20.0, 0.5, seed).order()]
              for seed in range(40)}  # fmt: skip
    assert len({tuple(each) for each in firsts.values()}) == 40
    paused = sum(first is Arm.PAUSE for each in firsts.values() for first in each)
    assert 0.4 < paused / (40 * 30) < 0.6


def test_a_file_has_all_pairs(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    pairs = noisy_pairs(1, 3)
    start(path, "node-1", DESIGN)
    for pair in pairs:
        append(path, pair)
    assert load(path) == ("node-1", DESIGN, pairs, 0, ())
    assert "candidate" not in path.read_text()  # an earlier version can read it
    with pytest.raises(FileExistsError):
        start(path, "node-1", DESIGN)
    assert len(load(path).pairs) == 3


def test_a_file_without_other_work_is_that_of_an_earlier_version(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    (plain,) = noisy_pairs(1, 1)
    more = replace(plain.enforce, work={Work.NETWORK: 12.5}, service_cpus=0.7)
    done = plain._replace(enforce=more)
    for path, pair in ((first, plain), (second, done)):
        start(path, "node-1", DESIGN)
        append(path, pair)
        assert load(path).pairs == [pair]
    assert ["work" in path.read_text() for path in (first, second)] == [False, True]
    second.write_text(second.read_text().replace("12.5", '"12.5"'))
    with pytest.raises(TrialError, match="damaged"):
        load(second)


def test_pairs_of_another_configuration_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    pairs = noisy_pairs(1, 6)
    start(path, "node-1", DESIGN)
    for number, pair in enumerate(pairs):
        append(path, pair, anew=number in (2, 3))
    assert load(path) == ("node-1", DESIGN, pairs[3:], 3, ())
    assert load(path).note == "3 pairs left out: then the configuration changed"


def test_pairs_of_another_configuration_are_left_out_though_none_follows(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    pairs = noisy_pairs(1, 3)
    start(path, "node-1", DESIGN)
    for number, pair in enumerate(pairs):
        append(path, pair, anew=number == 1, changes=[Change("reserve", "0cpu", "1cpu")])
    begin_anew(path)
    assert load(path) == ("node-1", DESIGN, [], 3, ())


def test_what_a_candidate_changed_is_that_of_the_last_pair(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    design = replace(DESIGN, policy="canary", candidate="d" * 64)
    pairs = noisy_pairs(1, 2)
    start(path, "node-1", design)
    for value, pair in zip(("0cpu", "1cpu"), pairs, strict=True):
        append(path, pair, changes=[Change("reserve", value, "2cpu")])
    found = load(path)
    assert (found.node, found.design, found.pairs, found.left_out) == ("node-1", design, pairs, 0)
    assert found.changes == (Change("reserve", "1cpu", "2cpu"),)
    again = load(path)
    assert changes_of([found, again]) == [Change("reserve", "1cpu", "2cpu")]


def test_a_pair_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    start(path, "node-1", DESIGN)
    for pair in noisy_pairs(1, 2):
        append(path, pair)
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    assert len(load(path).pairs) == 1


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    start(path, "node-1", DESIGN)
    append(path, noisy_pairs(1, 1)[0])
    head, line = path.read_text().splitlines()
    damaged = json.loads(line)
    damaged["enforce"]["suffered_ratio"]["web"] = "much"
    strange = [
        line.replace('"began_s": 1000.0', f'"began_s": {value}')
        for value in ("-1", "NaN", "1e300", "true", "1" + "0" * 400)
    ]
    assert line not in strange
    short = {"enforce": damaged["pause"]}
    for text in (
        "",
        "[]\n",
        "{}\n",
        f"{head[:-1]}\n",
        f"{head}\n{json.dumps(damaged)}\n",
        f"{head}\n{json.dumps(short)}\n",
        f"{head}\n[1]\n",
        f'{head}\n{line[:-1]}, "changes": [[1, 2, 3]]}}\n',
        f'{head}\n{line[:-1]}, "changes": [["a", "b"]]}}\n',
        f'{head}\n{line[:-1]}, "changes": 1}}\n',
        head.replace('"seed": ', '"candidate": 1, "seed": ') + "\n",
        *(f"{head}\n{each}\n" for each in strange),
        head.replace('"enforce_s": ', '"enforce_s": "x", "x": ') + "\n",
        head.replace('"seed": ', '"seed": [], "pairs": ') + "\n",
        "[" * 100_000,
    ):
        path.write_text(text)
        with pytest.raises(TrialError, match="not the file of a trial"):
            load(path)
    path.write_text(head.replace('"version": 1', '"version": 2') + "\n")
    with pytest.raises(TrialError, match="version 2 is not known"):
        load(path)
