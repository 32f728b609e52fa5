# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from controller.agent.recording import Entry, Recorder
from controller.cli.main import main
from controller.demo.simulated_node import SimulatedNode
from tests.support.loops.closed_loop import TICK_NS, ClosedLoop, make_settings
from tests.support.loops.history_loop import RecordedLoop

SVG = "{http://www.w3.org/2000/svg}"
SHORT = ["--seconds", "4", "--warm-up", "1"]


def test_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["simulate", "--scenario", "harmless", "--policy", "none", "sched-idle", *SHORT])
    assert code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "harmless: no job hurts"
    assert [line.split()[0] for line in lines[1:]] == ["policy", "none", "sched-idle"]


def test_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "harmless", "--policy", "sweetpoint", "--seeds", "2", "--json"]
    assert main(["simulate", *arguments, *SHORT]) == 0
    (summary,) = json.loads(capsys.readouterr().out)["results"]
    assert (summary["policy"], summary["seeds"]) == ("sweetpoint", 2)
    assert summary["work_cpus"]["low"] <= summary["work_cpus"]["mean"]


def test_without_a_terminal_progress_is_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.cli.simulate._LINE_EVERY_S", 0)
    command = ["simulate", "--scenario", "harmless", "--policy", "none", "--processes", "1"]
    assert main([*command, "--seconds", "3", "--warm-up", "1", "--seeds", "2"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "1/1 harmless none seed 1",
        "1/1 harmless none seed 2",
    ]


def test_a_group_stands_for_its_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "own-fault", "steal", "--policy", "sched-idle"]
    assert main(["simulate", *arguments, "--seconds", "2", "--warm-up", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("self-slow-1.4:") == out.count("steal:") == 1


def test_draws_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.svg"
    arguments = ["--scenario", "harmless", "--policy", "none", "parties", "--plot", str(plot)]
    assert main(["simulate", *arguments, *SHORT]) == 0
    root = ElementTree.fromstring(plot.read_text())
    assert [each.text for each in root.iter(f"{SVG}text")].count("parties") == 1
    assert len(list(root.iter(f"{SVG}path"))) == 4  # two policies in two charts
    capsys.readouterr()
    missing = str(tmp_path / "missing" / "plot.svg")
    assert main(["simulate", *arguments[:-1], missing, *SHORT]) == 2
    assert capsys.readouterr().err == f"sweetpoint: {tmp_path}/missing is no directory\n"


def test_tunes_and_searches_for_the_oracle(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "harmless", "--policy", "heracles", "oracle", "--tune"]
    assert main(["simulate", *arguments, "--seconds", "3", "--warm-up", "1"]) == 0
    out = capsys.readouterr().out
    assert "harmless heracles: top_s=" in out
    assert "harmless oracle: inf, inf, inf" in out


def test_lists_scenarios_and_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list"]) == 0
    out = capsys.readouterr().out
    assert "culprit-changes" in out
    assert "sweetpoint" in out


@pytest.mark.parametrize(
    "arguments",
    [["--scenario", "nothing"], ["--policy", "nothing"], ["--seconds", "60"]],
)
def test_wrong_use_is_one_line_and_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_invalid_profile_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "bad.yaml"
    profile.write_text("name: x\nindicators: {cpi: {sweet_point: none}}\n")
    assert main(["simulate", "--profile", str(profile), *SHORT]) == 2
    assert "cpi" in capsys.readouterr().err
    assert main(["simulate", "--profile", str(tmp_path / "missing.yaml"), *SHORT]) == 2


def test_a_recording_becomes_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recording"
    node = SimulatedNode(1, wants=(1.0, 0.5))
    loop = ClosedLoop(node)
    with Recorder(path) as recorder:
        for tick in range(20):
            snapshot = node.snapshot(tick * TICK_NS)
            plan = loop.planner.step(snapshot, ())
            entry = Entry(snapshot=snapshot, outcomes=(), plan=plan)
            if tick == 0:
                entry = replace(entry, anew=True, settings=loop.settings, workloads=node.workloads)
            recorder.write(entry)
    arguments = ["--recording", str(path), "--policy", "none", "koordinator"]
    assert main(["simulate", *arguments, *SHORT]) == 0
    out = capsys.readouterr().out
    assert out.startswith("recording: the load and the jobs of recording\n")
    assert main(["simulate", "--recording", str(tmp_path / "missing"), *SHORT]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_history_becomes_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = SimulatedNode(1, wants=(1.0, 0.5))
    loop = RecordedLoop(node, make_settings(), tmp_path)
    loop.run(30)
    loop.stop()
    arguments = ["--recording", str(tmp_path), "--policy", "none", "koordinator", "--json"]
    assert main(["simulate", *arguments, *SHORT]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert {each["policy"] for each in results} == {"none", "koordinator"}
    (tmp_path / "empty").mkdir()
    assert main(["simulate", "--recording", str(tmp_path / "empty"), *SHORT]) == 1
    assert "no snapshots" in capsys.readouterr().err
