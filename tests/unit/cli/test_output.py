# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Output that fails: a full device, a reader that has gone, a stream that the caller closed."""

from collections.abc import Sequence
import os
from pathlib import Path
import subprocess
import sys
from typing import IO

import pytest

from controller.cli.main import COMMANDS
from controller.demo.simulated_node import SimulatedNode
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.history_loop import RecordedLoop

CONFIG = """\
state_dir: {home}/state
data_dir: {home}
workloads: [{{name: batch, cgroup: /b, class: best-effort}}]
"""
SLO = "data: {colocation-config: '{}'}\n"
# What needs no agent, no root and little time. Of the others: run and retire print nothing to
# stdout, learn, top and trial need an agent's probes or pages, init fails on a node of Kubernetes.
PRINTING = {
    "doctor": ["--json"],
    "demo": ["--simulate", "--be", "stress-ng", "--seconds", "2", "--report", "{home}/report.html"],
    "pause": ["--state-dir", "{home}"],
    "resume": ["--state-dir", "{home}"],
    "release": ["--state-dir", "{home}"],
    "check": ["--config", "{home}/config.yaml"],
    "schema": ["config"],
    "status": ["--state-dir", "{home}"],
    "explain": ["--data-dir", "{home}", "--since", "1970-01-01T00:00"],
    "advise": ["--config", "{home}/config.yaml"],
    "replay": ["{home}"],
    "simulate": ["--list"],
    "import-koordinator": ["{home}/slo.yaml"],
    "completion": ["bash"],
}
OTHERS = {"run", "retire", "learn", "top", "init", "trial", "rollout"}
# The doctor compiles the probes, which takes seconds.
NAMES = [
    pytest.param(name, marks=pytest.mark.thorough) if name == "doctor" else name
    for name in COMMANDS
]
FULL = b"sweetpoint: the output cannot be written: no space is left on the device; free some\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file of each kind that a command reads."""
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(CONFIG.format(home=home))
    (home / "slo.yaml").write_text(SLO)
    loop = RecordedLoop(SimulatedNode(11, wants=(0.8,)), make_settings(), home)
    loop.start()
    for _ in range(20):
        loop.step()
    loop.stop()
    return home


def command(arguments: Sequence[str], home: Path) -> list[str]:
    words = [each.replace("{home}", str(home)) for each in arguments]
    return [sys.executable, "-m", "controller.cli.main", *words]


def run(
    arguments: Sequence[str], home: Path, stdout: IO[str]
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command whose output is written at its end, as that to a file is."""
    return subprocess.run(
        command(arguments, home),
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        check=False,
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_command_survives_a_full_device(name: str, home: Path) -> None:
    arguments = [name, *PRINTING[name]] if name in PRINTING else [name, "--help"]
    with Path("/dev/full").open("w") as full:
        done = run(arguments, home, full)
    assert b"Traceback" not in done.stderr
    assert done.stderr.endswith(FULL)
    assert done.returncode == 1


@pytest.mark.parametrize("name", NAMES)
def test_each_command_survives_a_reader_that_has_gone(name: str, home: Path) -> None:
    arguments = [name, *PRINTING[name]] if name in PRINTING else [name, "--help"]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = run(arguments, home, closed)
    assert b"Traceback" not in done.stderr
    assert b"Errno" not in done.stderr
    assert done.returncode == 1


def test_no_command_is_left_out() -> None:
    assert {*PRINTING, *OTHERS} == {*COMMANDS}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_so_do_the_texts_of_the_command_line_itself(arguments: list[str], home: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(arguments, home, full)
    assert (done.returncode, done.stderr) == (1, FULL)


def test_errors_that_cannot_be_printed_keep_the_exit_code(home: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command(["chekc"], home), stdout=full, stderr=full, check=False)
    assert done.returncode == 2


def test_closed_streams_are_opened_before_files_are(home: Path) -> None:
    """A file would get the number of stdout, and the output of the command in it."""
    shell = 'exec "$@" <&- >&- 2>&-'
    words = command(["check", "--config", "{home}/config.yaml"], home)
    done = subprocess.run(["sh", "-c", shell, "sh", *words], check=False)
    assert done.returncode == 0
