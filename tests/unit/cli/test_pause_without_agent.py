# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``pause`` and ``resume`` where no agent runs: what they did, and what takes effect when."""

from pathlib import Path
import time

import pytest

from actuators.journal import Journal
from controller.cli.main import main
from controller.host.candidate_file import CandidateEntry, read_candidate, write_candidate
from controller.host.state_dir import JOURNAL, Lock
from tests.unit.cli.test_status import QUOTA


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    found = tmp_path / "state"
    found.mkdir(mode=0o700)
    return found


def test_what_happens_now_and_later(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--state-dir", str(state_dir))
    nothing = f"no agent runs with {state_dir}, so nothing changes now; an agent that starts "
    assert main(["pause", "--service", "web", *options]) == 0
    assert main(["pause", "--workload", "job", *options]) == 0
    *_, note = capsys.readouterr().out.splitlines()
    assert note == f"{nothing}before the end obeys the pause"
    assert main(["resume", "--workload", "job", *options]) == 0
    *_, note = capsys.readouterr().out.splitlines()
    assert note == f"{nothing}obeys the pauses that are left"
    assert main(["resume", *options]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "resumed: service web",
        f"{nothing}protects services at once",
    ]


def test_the_candidate_of_a_trial_ends_only_with_all_pauses(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = time.time()
    options = ("--state-dir", str(state_dir))
    assert main(["pause", "--service", "web", *options]) == 0
    write_candidate(state_dir, CandidateEntry("name: x", "x", now_s + 60), now_s)
    assert main(["resume", "--service", "web", *options]) == 0
    assert read_candidate(state_dir, now_s) is not None
    capsys.readouterr()
    assert main(["resume", *options]) == 0
    first, _ = capsys.readouterr().out.splitlines()
    assert first == "ended: the candidate of a trial"
    assert read_candidate(state_dir, now_s) is None


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_what_a_killed_agent_left_is_named(
    command: str, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(state_dir / JOURNAL).put(QUOTA)
    assert main([command, "--state-dir", str(state_dir)]) == 0
    *_, held = capsys.readouterr().out.splitlines()
    assert held == (
        f"1 knob still held: 'sweetpoint release --state-dir {state_dir}' gives back what is left"
    )


def test_a_running_agent_needs_no_note(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = Lock(state_dir)
    try:
        assert main(["pause", "--state-dir", str(state_dir)]) == 0
        assert main(["resume", "--state-dir", str(state_dir)]) == 0
    finally:
        lock.close()
    assert "no agent" not in capsys.readouterr().out
