# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A trial in the background: its record, its lock, and the commands that find and end it."""

import io
import json
from pathlib import Path
import signal
import subprocess
import sys

import pytest

from controller.cli.main import main
from controller.cli.trial_background import Background, Latest, State, latest, stop
from controller.trial.blocks import Arm, Design, TrialError, append, start
from tests.support.trial import noisy_pairs
from tests.support.waiting import DEADLINE_S, eventually

DESIGN = Design.of(7200.0, 120.0, 20.0, 0.5, 7)
# Goes on in a process of its own, which says so and then waits for its end.
PROGRAM = """
from pathlib import Path
import os, signal, sys, time
from controller.cli.trial_background import Background
from controller.trial.blocks import Design, start
data = Path(sys.argv[1])
place, file = Background(data), data / "pairs.jsonl"
if not file.exists():
    start(file, "n1", Design.of(7200.0, 120.0, 20.0, 0.5, 7))
place.begin(file)
if place.leave():
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    place.gone_on()
    time.sleep(600)
except KeyboardInterrupt:
    place.end("interrupted", "")
"""


# The process of the trial ends before it can be stopped, or the command that began it is killed.
ENDS = PROGRAM.replace("place.gone_on()", "raise KeyboardInterrupt")
KILLED = PROGRAM.replace("place.gone_on()", "os.kill(os.getppid(), 9); place.gone_on()")


def begin(data: Path, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """Begin a trial in the background; its parent has ended."""
    return subprocess.run(
        [sys.executable, "-c", program, data],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def record(data: Path, *, pairs: int = 0, design: Design = DESIGN) -> Background:
    """Return the place of a trial with *pairs*, whose process is this one."""
    file = data / "pairs.jsonl"
    start(file, "n1", design)
    for pair in noisy_pairs(1, pairs, less=0.3):
        append(file, pair)
    place = Background(data)
    place.begin(file, "pool")
    return place


def compared(found: Latest) -> object:
    return found.plain()["compared"]


def config(data: Path) -> Path:
    path = data / "config.yaml"
    path.write_text(f"data_dir: {data}\n")
    return path


def test_it_goes_on_without_its_command_until_it_is_stopped(tmp_path: Path) -> None:
    done = begin(tmp_path)  # ends although the trial goes on: it has none of its pipes
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    try:
        assert latest(tmp_path).state is State.RUNNING
        again = begin(tmp_path)
        assert again.returncode == 1
        assert "a trial runs in the background: 'sweetpoint trial --latest'" in again.stderr
    finally:
        assert stop(tmp_path)
    found = latest(tmp_path)
    assert (found.state, found.record.ended) == (State.ENDED, "interrupted")
    assert not stop(tmp_path)
    assert begin(tmp_path).returncode == 0
    assert stop(tmp_path)


def test_another_trial_is_not_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trial", "--config", str(config(tmp_path)), "--stop", "--label"]
    assert begin(tmp_path, PROGRAM.replace("begin(file)", "begin(file, 'one')")).returncode == 0
    try:
        assert main([*words, "two"]) == 2
        told = capsys.readouterr().err
        assert "the trial in the background has label 'one', not 'two': it goes on" in told
        assert latest(tmp_path).state is State.RUNNING
        assert main([*words, "one"]) == 0
        assert latest(tmp_path).state is State.ENDED
        assert main([*words, "two"]) == 0
        assert capsys.readouterr().out.endswith("no trial runs in the background\n")
    finally:
        stop(tmp_path)


def test_one_whose_label_is_not_known_yet_is_not_stopped(tmp_path: Path) -> None:
    place = record(tmp_path)
    place.end("interrupted", "")  # the record is still that of the trial before
    with pytest.raises(TrialError, match="whose label is not known yet: it goes on"):
        stop(tmp_path, "pool")


def test_one_that_ends_before_it_can_be_stopped_has_not_begun(tmp_path: Path) -> None:
    done = begin(tmp_path, ENDS)
    assert done.returncode == 1
    assert f"{tmp_path}/trials/background/log may say why" in done.stderr
    assert not stop(tmp_path)


def test_it_can_be_stopped_if_its_command_was_killed(tmp_path: Path) -> None:
    assert begin(tmp_path, KILLED).returncode == -signal.SIGKILL
    eventually("the trial", lambda: latest(tmp_path).state is State.RUNNING)
    assert stop(tmp_path)
    assert latest(tmp_path).state is State.ENDED


def test_a_trial_whose_process_is_gone_was_killed(tmp_path: Path) -> None:
    place = record(tmp_path)
    assert latest(tmp_path).state is State.RUNNING
    place._lock.close()
    (tmp_path / "trials" / "background" / "lock").write_text("1 0\n")  # a pid that another has
    assert latest(tmp_path).state is State.KILLED
    assert not stop(tmp_path)


def test_its_end_and_what_it_compared_are_noted(tmp_path: Path) -> None:
    place = record(tmp_path, pairs=4)
    assert compared(latest(tmp_path)) == ""  # it may not have begun
    place.note(("files", "profiles"))
    first = compared(latest(tmp_path))
    place.note(("files", "other profiles"))
    assert compared(latest(tmp_path)) not in ("", first)
    place.note(("files", "profiles"))
    place.end("enforcing hurts web", Arm.ENFORCE)
    found = latest(tmp_path)
    assert found.plain() == {
        "state": "ended",
        "label": "pool",
        "hurt": "enforce",
        "seed": 7,
        "pairs": 4,
        "of": 30,
        "compared": first,
    }
    assert found.record.ended == "enforcing hurts web"


def test_blocks_of_other_lengths_are_another_comparison(tmp_path: Path) -> None:
    found = []
    for name, design in (("one", DESIGN), ("two", Design.of(7200.0, 60.0, 20.0, 0.5, 7))):
        data = tmp_path / name
        data.mkdir()
        record(data, design=design).note(("files", "profiles"))
        found.append(compared(latest(data)))
    assert len({*found}) == 2


def test_the_latest_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, pairs=4)
    words = ["trial", "--config", str(config(tmp_path))]
    assert main([*words, "--latest"]) == 0
    head, pairs, web, *_ = capsys.readouterr().out.splitlines()
    assert head == "running: pair 4 of 30, order 7"
    assert pairs.startswith("4 pairs; ") and web.endswith(": better")
    assert main([*words, "--latest", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trial"]["state"], found["nodes"], found["ended"]) == ("running", ["n1"], "")


def test_another_trial_of_the_host_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin(tmp_path).returncode == 0
    try:
        assert main(["trial", "--config", str(config(tmp_path))]) == 2
        assert "--stop ends it" in capsys.readouterr().err
    finally:
        assert stop(tmp_path)


def test_a_candidate_that_is_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"name: x\n\xff"), "utf-8"))
    assert main(["trial", "--config", str(config(tmp_path)), "--against", "-"]) == 2
    assert "standard input:2: not UTF-8 text: byte 0xff" in capsys.readouterr().err


def test_without_any_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trial", "--config", str(config(tmp_path))]
    assert main([*words, "--latest"]) == 2
    assert "no trial was begun in the background on this host" in capsys.readouterr().err
    assert main([*words, "--stop"]) == 0
    assert capsys.readouterr().out == "no trial runs in the background\n"
    assert main([*words, "--background", "--report", str(tmp_path / "x.html")]) == 2
    assert "--latest has one" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "x": 1}'])
def test_a_record_that_is_damaged(text: str, tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "trials" / "background" / "trial.json").write_text(text)
    with pytest.raises(TrialError, match=r"damaged|version 2 is not known"):
        latest(tmp_path)
