# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which trials an agent begins by itself, and which of its own it ends."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
import os
from pathlib import Path
import subprocess
import sys
from typing import cast

import pytest

from controller.agent.trials import Trials
from controller.config.load import Config, load
from controller.config.policies import PoliciesInForce, PolicyInForce
from controller.config.sections.trial import TrialConfig
from controller.core.units import NS_PER_SEC
from controller.host.state_dir import Lock
from controller.host.trial_record import (
    Record,
    digest_of,
    read_record,
    record_file,
    trial_directory,
    write_record,
)

CONFIGURATION = ("files", "profiles")
NOW_S = 1_800_000_000.0


class Command:
    """A command that has ended with *code*."""

    def __init__(self, code: int = 0, errors: str = "") -> None:
        self.returncode, self.errors = code, errors
        self.runs = False

    def poll(self) -> int | None:
        return None if self.runs else self.returncode

    def communicate(self) -> tuple[None, str]:
        return None, self.errors


class Bench:
    """Trials with clocks of the test; ``begun`` has the options of each command."""

    def __init__(self, directory: Path) -> None:
        workload = "{name: web, cgroup: /web, class: latency-sensitive, profile: nginx}"
        file = directory / "config.yaml"
        text = f"data_dir: {directory}/data\nworkloads:\n  - {workload}\n"
        file.write_text(f"{text}trial: {{enabled: true}}\n")
        self.config: Config = load(file, cpus=4)
        self.begun: list[list[str]] = []
        self.command = Command()
        self.now_s = 0.0
        self.trials = Trials(file, self.start, lambda: self.now_s, lambda: NOW_S + self.now_s)
        trial_directory(self.data_dir).mkdir(parents=True)

    @property
    def data_dir(self) -> Path:
        return self.config.data_dir

    def start(self, command: Sequence[str]) -> "subprocess.Popen[str]":
        words = [*command]
        at = words.index("--config")
        assert words[at - 2 : at] == ["controller.cli.main", "trial"]
        directories = [f"--state-dir={self.config.state_dir}", f"--data-dir={self.data_dir}"]
        assert words[at + 2 : at + 4] == directories
        self.begun.append(words[at + 4 :])
        return cast("subprocess.Popen[str]", self.command)

    def poll(self, seconds: float = 10.0, *, ready: bool = True) -> list[str]:
        """Poll *seconds* later; return the options of the command that was started."""
        self.now_s += seconds
        count = len(self.begun)
        self.trials.poll(self.config, CONFIGURATION, ready=ready)
        assert len(self.begun) <= count + 1
        return self.begun[-1] if len(self.begun) > count else []

    def change(self, **settings: object) -> None:
        trial = replace(self.config.trial, **settings)  # type: ignore[arg-type]
        self.config = replace(self.config, trial=trial)

    @property
    def label(self) -> str:
        return f"configuration {digest_of(*self.config.trial.options)}"

    def write(self, ended: str | None = None, hurt: str = "", **others: str) -> None:
        """Write the record of the last trial, which had this configuration, now."""
        fields = {"label": self.label, "configuration": digest_of(*CONFIGURATION)} | others
        write_record(self.data_dir, Record(file="pairs", ended=ended, hurt=hurt, **fields))
        os.utime(record_file(self.data_dir), (NOW_S + self.now_s,) * 2)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def running(bench: Bench) -> Iterator[Lock]:
    """The lock of a trial that runs."""
    lock = Lock(trial_directory(bench.data_dir))
    yield lock
    lock.close()


def test_it_begins_with_the_options_of_the_section(bench: Bench) -> None:
    bench.change(total_ns=3600 * NS_PER_SEC, publish=True)
    assert bench.poll() == [
        *("--background", "--label", bench.label),
        *("--blocks", f"{bench.data_dir}/trials/configured-2027-01-15T080010Z.jsonl"),
        *("--for", "3600000000000ns", "--block", "120000000000ns", "--washout", "20000000000ns"),
        *("--paused", "0.500000000000", "--most-harm", "0.500000000000", "--publish"),
    ]


def test_not_more_often_than_it_looks(bench: Bench) -> None:
    assert bench.poll()
    bench.write(ended="")
    assert not bench.poll(5)
    assert not bench.poll(5), "a trial that just began is not over, whatever its record says"
    assert bench.poll(300)


@pytest.mark.parametrize("why", ["disabled", "not ready"])
def test_none_begins(bench: Bench, why: str) -> None:
    bench.change(enabled=why != "disabled")
    assert not bench.poll(ready=why != "not ready")
    bench.change(enabled=True)
    assert bench.poll()


def test_a_policy_is_tried_where_it_is_in_force(bench: Bench) -> None:
    bench.change(policy="canary")
    assert not bench.poll()
    canary = PolicyInForce("canary", 0, "always")
    for entry in (canary._replace(promoted=True), canary):
        assert not bench.poll()
        bench.config = replace(bench.config, in_force=PoliciesInForce(entries=(entry,)))
    begun = bench.poll()
    assert begun[begun.index("--policy") + 1] == "canary"


@pytest.mark.parametrize(
    ("policy", "sets"), [("canary", {"reserve": "0cpu"}), ("", {"mode": "enforce"})]
)
def test_what_is_promoted_is_not_tried_any_more(
    bench: Bench, policy: str, sets: dict[str, str]
) -> None:
    bench.change(policy=policy)
    canary = PolicyInForce("canary", 0, "always", sets)
    bench.config = replace(bench.config, in_force=PoliciesInForce(entries=(canary,)))
    assert bench.poll()
    bench.write()
    lock = Lock(trial_directory(bench.data_dir))
    assert not bench.poll(400)
    promoted = PoliciesInForce(entries=(canary._replace(promoted=True),))
    bench.config = replace(bench.config, in_force=promoted)
    assert bench.poll() == ["--stop", "--label", bench.label]
    lock.close()
    bench.write(ended="interrupted")
    assert not bench.poll(100_000)


def test_one_that_runs_goes_on(bench: Bench, running: Lock) -> None:
    bench.write()
    assert not bench.poll()
    assert not bench.poll(ready=False), "it is in a block that is paused"


@pytest.mark.parametrize("settings", [{"enabled": False}, {"block_ns": 60 * NS_PER_SEC}])
def test_one_with_other_settings_is_ended(
    bench: Bench, running: Lock, settings: dict[str, object]
) -> None:
    bench.write()
    label = bench.label
    bench.change(**settings)
    assert bench.poll() == ["--stop", "--label", label]


@pytest.mark.parametrize("enabled", [False, True])
def test_that_of_an_operator_is_left_alone(bench: Bench, running: Lock, enabled: bool) -> None:
    bench.write(label="mine")
    bench.change(enabled=enabled)
    assert not bench.poll()


def test_one_that_is_beginning_is_left_alone(bench: Bench, running: Lock) -> None:
    bench.write(ended="")
    bench.change(enabled=False)
    assert not bench.poll()


@pytest.mark.parametrize("ended", ["interrupted", None], ids=["ended early", "killed"])
def test_after_an_early_end_it_waits_five_minutes(bench: Bench, ended: str | None) -> None:
    bench.write(ended=ended)
    assert not bench.poll(290)
    assert bench.poll(10)


def test_after_harm_it_waits_a_day(bench: Bench) -> None:
    bench.write(ended="hurts web", hurt="enforce")
    assert not bench.poll(86_000)
    assert bench.poll(1000)


def test_the_trial_of_an_operator_does_not_end_the_rest_after_harm(bench: Bench) -> None:
    bench.write(ended="hurts web", hurt="enforce")
    assert not bench.poll(3600)
    bench.write(ended="", label="mine")
    assert not bench.poll(3600)
    assert not bench.poll(3600)
    assert bench.poll(86_400)


def test_after_harm_another_configuration_is_tried_at_once(bench: Bench) -> None:
    bench.write(ended="hurts web", hurt="enforce", configuration="other")
    assert bench.poll()


def test_after_harm_a_trial_of_other_settings_begins(bench: Bench) -> None:
    bench.write(ended="hurts web", hurt="enforce")
    bench.change(policy="", block_ns=60 * NS_PER_SEC)
    assert bench.poll()


def test_a_command_that_fails_is_told_and_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.command = Command(1, "sweetpoint: first\nsweetpoint: no room\x1b\n")
    assert bench.poll()
    assert not bench.poll(290)
    assert "no room\\x1b" in caplog.text
    assert "first" not in caplog.text
    assert bench.poll(10)


def test_a_command_that_hangs_is_not_started_twice(bench: Bench) -> None:
    bench.command.runs = True
    assert bench.poll()
    assert not bench.poll(10_000)


def test_a_damaged_record_is_told_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    record_file(bench.data_dir).write_text("{")
    assert bench.poll()
    bench.poll()
    assert caplog.text.count("trial.json: damaged") == 1


def test_old_files_are_removed_and_those_of_an_operator_stay(bench: Bench) -> None:
    directory = bench.data_dir / "trials"
    for number in range(20):
        (directory / f"configured-2026-01-{number + 1:02}T000000Z.jsonl").write_text("{}\n{}\n")
    for number in range(20):
        (directory / f"configured-2026-02-{number + 1:02}T000000Z.jsonl").write_text("{}\n")
    mine = directory / "2025-01-01T000000Z.jsonl"
    mine.touch()
    bench.poll()
    left = sorted(path.name for path in directory.glob("*.jsonl"))
    assert left[0] == mine.name
    assert left[1] == "configured-2026-01-06T000000Z.jsonl"
    assert len(left) == 1 + 15


def test_a_program_that_is_missing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    trials = Trials(tmp_path / "config.yaml")
    trials.poll(bench.config, CONFIGURATION, ready=True)
    assert read_record(bench.data_dir) is None


def test_defaults_of_the_record_are_those_of_the_section(bench: Bench) -> None:
    assert bench.config.trial == TrialConfig(enabled=True)
