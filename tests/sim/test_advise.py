# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint advise`` promises of an observed node, and what enforcing then brings."""

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main
from controller.core.model import Mode
from controller.demo.simulated_node import SimulatedNode
from tests.closed_loop import make_settings
from tests.history_loop import RecordedLoop

START = "2020-01-01T00:00:00+00:00"
Advise = Callable[..., str]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def advise(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> Advise:
    """Run the command; return what it prints."""

    def run(*options: str) -> str:
        assert main(["advise", "--data-dir", str(data_dir), "--since", START, *options]) == 0
        return capsys.readouterr().out

    return run


def load(loop: RecordedLoop) -> None:
    """Ten minutes, half of them with two best-effort jobs that hurt."""
    for wants in ([0.0, 0.0], [1.2, 0.5]) * 2:
        loop.node.wants = list(wants)
        loop.run(150)


def observed(data_dir: Path, **changes: Any) -> RecordedLoop:
    loop = RecordedLoop(
        SimulatedNode(3, wants=(0.0, 0.0)), make_settings(mode=Mode.OBSERVE), data_dir
    )
    for name, value in changes.items():
        setattr(loop.node, name, value)
    load(loop)
    loop.stop()
    return loop


def test_promised_and_kept(data_dir: Path, advise: Advise) -> None:
    loop = observed(data_dir)
    found = json.loads(advise("--json"))
    (service,) = found["services"]
    assert (service["service"], service["channel"]) == ("web-0", "cpu")
    times = service["modes"]["observe"]
    assert times["suffered_ns"] == pytest.approx(300e9, rel=0.15)
    assert times["states_ns"]["squeeze"] > 0.9 * times["suffered_ns"]
    assert service["be_share"] > 0.9
    shares = {each["workload"]: each["share"] for each in service["culprits"]}
    assert shares["batch-0"] > 1.5 * shares["batch-1"] > 0.2
    taken = found["taken_at_most"]
    assert taken["used_cpu_s"] == pytest.approx(300 * 1.7, rel=0.05)
    assert 0.5 * taken["used_cpu_s"] < taken["cut_cpu_s"] < taken["used_cpu_s"]
    assert sum(taken["by_workload"].values()) == pytest.approx(taken["cut_cpu_s"], rel=0.01)
    assert loop.files.cut_cpu_s == pytest.approx(taken["cut_cpu_s"], rel=0.01)

    loop.settings = make_settings()
    loop.start()
    used_before = loop.node.best_effort_cpu_s
    load(loop)
    loop.stop()
    used = loop.node.best_effort_cpu_s - used_before
    # What was promised is a bound: no more was taken, and the service suffered for less time.
    assert 300 * 1.7 - used <= taken["cut_cpu_s"] * 1.02
    again = json.loads(advise("--json"))["services"][0]["modes"]
    assert again["observe"]["suffered_ns"] == times["suffered_ns"]
    assert again["enforce"]["suffered_ns"] < 0.6 * times["suffered_ns"]
    text = advise()
    assert "10min in observe mode and 10min in enforce mode" in text
    assert "observe   suffered" in text and "enforce   suffered" in text
    assert "How sure is this?" in text


def test_a_service_that_only_throttles_itself_gains_nothing(data_dir: Path, advise: Advise) -> None:
    observed(data_dir, throttled_ratio=0.5)
    text = advise()
    assert "throttled by its own quota" in text
    (service,) = json.loads(advise("--json"))["services"]
    states = service["modes"]["observe"]["states_ns"]
    assert states["self"] > 0.9 * sum(states.values())


def test_no_service_suffered(data_dir: Path, advise: Advise) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=()), make_settings(mode=Mode.OBSERVE), data_dir)
    loop.run(300)
    loop.stop()
    text = advise()
    assert "there was nothing to protect" in text
    assert "would have limited no best-effort work" in text


def test_only_enforced(data_dir: Path, advise: Advise) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=(1.2,)), make_settings(), data_dir)
    loop.run(60)
    loop.stop()
    assert "Nothing was only observed" in advise()


def test_names_cannot_control_the_terminal(data_dir: Path, advise: Advise) -> None:
    node = SimulatedNode(3, wants=(1.2, 0.5))
    node.best_effort[0] = node.best_effort[0]._replace(name="x\x1b[2J")
    loop = RecordedLoop(node, make_settings(mode=Mode.OBSERVE), data_dir)
    loop.run(60)
    loop.stop()
    text = advise()
    assert r"x\x1b[2J" in text
    assert text.replace("\n", "").isprintable()
