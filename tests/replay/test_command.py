# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Output and errors of ``sweetpoint replay``, with and without other settings."""

from dataclasses import replace
import gzip
import os
from pathlib import Path
import subprocess
import sys

import pytest

from controller.agent.recording import Entry, Recorder, replay
from controller.cli.main import main
from controller.core.decision import Outcome
from controller.core.planner import Planner
from controller.core.settings import HostFacts
from controller.demo.simulated_node import SimulatedNode
from tests.support.loops.closed_loop import TICK_NS, make_settings
from tests.support.loops.history_loop import RecordedLoop

WORKLOADS = "workloads: [{name: web, cgroup: /web, class: latency-sensitive, service: web}]\n"


def record(path: Path) -> Path:
    """Record a service with a profile ``gold`` that no file defines."""
    node = SimulatedNode(11, wants=(0.8,))
    default = make_settings().profiles["default"]
    settings = replace(make_settings(), profiles={"gold": replace(default, name="gold")})
    workloads = tuple(each._replace(profile="gold") for each in node.workloads)
    planner = Planner(settings, workloads)
    with Recorder(path) as recorder:
        for tick in range(3):
            snapshot = node.snapshot(tick * TICK_NS)
            entry = Entry(snapshot=snapshot, outcomes=(), plan=planner.step(snapshot, ()))
            if tick == 0:
                entry = replace(entry, anew=True, settings=settings, workloads=workloads)
            recorder.write(entry)
    return path


def test_the_same_settings_give_the_same_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(record(tmp_path / "r"))]) == 0
    assert (
        capsys.readouterr().out.splitlines()[-1] == "3 ticks, 0 plans differ from the recorded ones"
    )


def test_the_report_shows_the_replayed_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["replay", str(record(tmp_path / "r")), "--report", str(page)]) == 0
    text = page.read_text()
    assert "3 ticks, 0 plans differ from the recorded ones" in text
    assert text.count('<svg viewBox="0 0 1120') == 2
    assert "<script" not in text
    missing = ["replay", str(record(tmp_path / "r")), "--report", str(tmp_path / "no" / "page")]
    assert main(missing) == 2
    assert f"{tmp_path}/no is no directory" in capsys.readouterr().err


def test_the_report_of_a_history_has_its_decisions(tmp_path: Path) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=(1.2, 0.5)), make_settings(), tmp_path / "data")
    loop.run(120)
    loop.stop()
    page = tmp_path / "page.html"
    assert main(["replay", str(tmp_path / "data"), "--report", str(page)]) == 0
    text = page.read_text()
    assert "web-0: web-0 runq_p99" in text
    assert "batch-0" in text


def test_the_report_goes_on_over_a_boot(tmp_path: Path) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=(1.2, 0.5)), make_settings(), tmp_path / "data")
    loop.tick = 10_000
    loop.run(60)
    loop.stop()
    again = RecordedLoop(SimulatedNode(3, wants=(1.2, 0.5)), make_settings(), tmp_path / "data")
    again.run(60)
    again.stop()
    page = tmp_path / "page.html"
    assert main(["replay", str(tmp_path / "data"), "--report", str(page)]) == 0
    assert page.read_text().count(">110 s<") == 2  # of two charts


def test_a_cgroup_whose_name_is_not_utf8_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = SimulatedNode(11, wants=(0.8,))
    workloads = tuple(each._replace(path=f"{each.path}\udcff\\") for each in node.workloads)
    planner = Planner(make_settings(), workloads)
    with Recorder(tmp_path / "r") as recorder:
        for tick in range(3):
            snapshot = node.snapshot(tick * TICK_NS)
            entry = Entry(snapshot=snapshot, outcomes=(), plan=planner.step(snapshot, ()))
            if tick == 0:
                entry = replace(entry, anew=True, settings=make_settings(), workloads=workloads)
            recorder.write(entry)
    assert main(["replay", str(tmp_path / "r")]) == 0
    assert capsys.readouterr().out.endswith("3 ticks, 0 plans differ from the recorded ones\n")


def test_a_profile_that_the_configuration_lacks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording, config = record(tmp_path / "r"), tmp_path / "c.yaml"
    config.write_text(WORKLOADS)
    assert main(["replay", str(recording), "--config", str(config)]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "service 'web-0' has the profile 'gold'" in error
    assert "under 'profiles'" in error and "gold.yaml" in error


def test_a_configuration_with_that_profile_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording, config = record(tmp_path / "r"), tmp_path / "c.yaml"
    config.write_text(WORKLOADS + "profiles: [gold.yaml]\n")
    indicators = "{runq_p99: {sweet_point: 1ms}}"
    (tmp_path / "gold.yaml").write_text(f"name: gold\nindicators: {indicators}\n")
    assert main(["replay", str(recording), "--config", str(config)]) == 0
    assert "3 ticks" in capsys.readouterr().out


def test_other_settings_keep_the_machine_of_the_recording() -> None:
    node = SimulatedNode(11, wants=(0.8, 0.6))
    settings = make_settings()
    planner = Planner(settings, node.workloads)
    entries: list[Entry] = []
    outcomes: tuple[Outcome, ...] = ()
    for tick in range(100):
        snapshot = node.snapshot(tick * TICK_NS)
        plan = planner.step(snapshot, outcomes)
        entries.append(Entry(snapshot=snapshot, outcomes=outcomes, plan=plan))
        outcomes = node.execute(plan.actions)
    entries[0] = replace(entries[0], anew=True, settings=settings, workloads=node.workloads)
    assert any(entry.plan.actions for entry in entries)
    elsewhere = replace(settings, host=HostFacts(cpus=64))
    assert all(plan == entry.plan for entry, plan in replay(iter(entries), elsewhere))


def test_a_damaged_recording_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "r"
    # A deflate block of a type that does not exist.
    recording.write_bytes(gzip.compress(b"", mtime=0)[:10] + b"\x07")
    assert main(["replay", str(recording)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"sweetpoint: {recording}: line 0: ")


def test_the_history_replays_with_another_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=(1.2, 0.5)), make_settings(), tmp_path / "data")
    loop.run(150)
    loop.stop()
    assert main(["replay", str(tmp_path / "data")]) == 0
    *verdicts, count, means = capsys.readouterr().out.splitlines()
    assert any("web-0 runq_p99" in line for line in verdicts)
    assert count == "75 snapshots"
    same = float(means.split()[-2])
    assert same > 0.1
    config = tmp_path / "c.yaml"
    config.write_text(WORKLOADS.replace("}]", ", profile: default}]") + "profiles: [p.yaml]\n")
    (tmp_path / "p.yaml").write_text("name: default\nindicators: {runq_p99: {sweet_point: 10s}}\n")
    assert main(["replay", str(tmp_path / "data" / "history"), "--config", str(config)]) == 0
    out, _ = capsys.readouterr()
    assert out.splitlines()[-1].endswith("recorded, 0.000 replayed")
    assert main(["replay", str(tmp_path)]) == 1
    assert "no snapshots" in capsys.readouterr().err


def test_a_recording_without_a_tick_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := tmp_path / "empty").touch()
    assert main(["replay", str(path)]) == 1
    assert capsys.readouterr().err == f"sweetpoint: {path} has no tick\n"


def test_a_closed_stdout_is_no_fault_of_the_recording(tmp_path: Path) -> None:
    code = "import sys; from controller.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-u", "-c", code, "replay", str(record(tmp_path / "r"))]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
