# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from dataclasses import replace
import json
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.trial.blocks import Change, Design, append, start
from tests.support.trial import noisy_pairs

DESIGN = Design.of(7200.0, 120.0, 20.0, 0.5, 7)


def saved(
    path: Path,
    seed: int,
    count: int = 8,
    less: float = 0.3,
    design: Design = DESIGN,
    changes: Sequence[Change] = (),
) -> Path:
    start(path, f"node-{seed}", design)
    for pair in noisy_pairs(seed, count, less=less, work=0.9):
        append(path, pair, changes=changes)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--for", "soon"), "--for: 'soon' is not a duration"),
        (("--washout", "2"), "--washout: '2' is not a duration"),
        (("--paused", "half"), "--paused: 'half' is not"),
        (("--most-harm", "little"), "--most-harm: 'little' is not"),
        (("--paused", "80%"), "--paused must be above 0% and at most 50%"),
        (("--for", "5m"), "--for has no room for 3 pairs of 240 s"),
    ],
)
def test_a_wrong_option_is_named(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trial", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_configuration_names_no_option_that_a_trial_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    assert main(["trial", "--config", str(path)]) == 2
    err = capsys.readouterr().err
    assert err == f"sweetpoint: {path}: cannot read: there is no such file or directory\n"


def test_what_pairs_show_is_told_in_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trial", "--read", str(saved(tmp_path / "one", 1))]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "8 pairs; each line: enforcing, paused, effect with its 95 % interval"
    assert lines[0].startswith("  web: above its sweet point 1") and lines[0].endswith(": better")
    assert lines[1].startswith("  best-effort work: 0.") and lines[1].endswith(": worse")
    assert lines[2] == "  the agent used 0.020 and 0.020 CPUs"
    assert lines[3] == "  the host took 0.010 and 0.010 of the CPU time"


def test_nodes_are_put_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = [word for n in (1, 2) for word in ("--read", str(saved(tmp_path / str(n), n)))]
    assert main(["trial", *read]) == 0
    assert capsys.readouterr().out.startswith("16 pairs on 2 nodes; ")
    assert main(["trial", *read, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"] == ["node-1", "node-2"]
    assert [each["verdict"] for each in found["findings"]] == ["better", "worse"]


def test_the_arms_of_a_policy_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path / "one", 1, design=replace(DESIGN, policy="canary"))
    report = tmp_path / "report.html"
    assert main(["trial", "--read", str(file), "--report", str(report)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 pairs; each line: with canary, without canary, effect with")
    page = report.read_text()
    assert "with canary and without canary in turns" in page
    assert "paused" not in page and "enforcing" not in page
    assert main(["trial", "--read", str(file), "--json"]) == 0
    arms = json.loads(capsys.readouterr().out)["arms"]
    assert arms == {"enforce": "with canary", "pause": "without canary"}


AGAINST = replace(DESIGN, policy="mine", candidate="d" * 64)


def test_what_differs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [Change("law.find_harm", "false", "true"), Change("reserve", "<0cpu>", "1cpu")]
    files = [saved(tmp_path / str(n), n, design=AGAINST, changes=changes) for n in (1, 2)]
    read = [word for file in files for word in ("--read", str(file))]
    report = tmp_path / "report.html"
    assert main(["trial", *read, "--report", str(report)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "  law.find_harm: false with mine, true without it",
        "  reserve: <0cpu> with mine, 1cpu without it",
    ]
    page = report.read_text()
    assert "What differs between the two." in page
    assert page.count("law.find_harm") == 1
    assert "&lt;0cpu&gt;" in page and "<0cpu>" not in page
    assert main(["trial", *read, "--json"]) == 0
    first, _ = json.loads(capsys.readouterr().out)["changes"]
    assert first == {"key": "law.find_harm", "value": "false", "without": "true"}


def test_candidates_of_one_name_that_set_different_things_are_not_put_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    designs = (AGAINST, replace(AGAINST, candidate="e" * 64), replace(AGAINST, candidate=""))
    one, *others = (saved(tmp_path / str(n), n, design=each) for n, each in enumerate(designs))
    for other in others:
        assert main(["trial", "--read", str(one), "--read", str(other)]) == 2
        assert "these trials compared different things" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: mine\nset: {tick: 1s}\n", "mine.yaml:2: set.tick: a policy cannot set this key"),
        ("name: mine\nset: {reserve: 9999cpu}\n", "mine.yaml:2: set.reserve: "),
        ("name: mine\nset: {reserve: 100mcpu}\n", "mine.yaml: changes nothing on this node"),
        ("#" * 20_000, "mine.yaml: longer than 16384 characters"),
    ],
)
def test_a_file_that_cannot_be_tried_is_refused_before_anything_begins(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, against = tmp_path / "config.yaml", tmp_path / "mine.yaml"
    config.write_text(
        f"state_dir: {tmp_path}/state\ndata_dir: {tmp_path}/data\n"
        "workloads: [{name: web, cgroup: /web, class: latency-sensitive, profile: nginx}]\n"
    )
    against.write_text(text)
    assert main(["trial", "--config", str(config), "--against", str(against)]) == 2
    assert message in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml", "mine.yaml"]


def test_a_policy_and_a_file_are_not_compared_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trial", "--policy", "canary", "--against", "mine.yaml"])
    assert ended.value.code == 2
    assert "not allowed with argument --policy" in capsys.readouterr().err


def test_trials_of_different_things_are_not_put_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = saved(tmp_path / "two", 2, design=replace(DESIGN, policy="canary"))
    read = ["--read", str(saved(tmp_path / "one", 1)), "--read", str(other)]
    assert main(["trial", *read]) == 2
    assert "these trials compared different things" in capsys.readouterr().err


def test_json_has_no_infinity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trial", "--json", "--read", str(saved(tmp_path / "one", 1, count=1))]) == 0
    text = capsys.readouterr().out
    assert "Infinity" not in text
    assert json.loads(text)["findings"][0]["effect"][1:] == [None, None]


def test_a_pair_that_would_tell_more_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trial", "--read", str(saved(tmp_path / "one", 6, count=4, less=0.06))]) == 0
    assert "more pairs would show an effect of this size" in capsys.readouterr().out


def test_a_file_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").write_text("{}\n")
    assert main(["trial", "--read", str(tmp_path / "other")]) == 2
    assert "not the file of a trial" in capsys.readouterr().err
    assert main(["trial", "--read", str(tmp_path / "none")]) == 1
