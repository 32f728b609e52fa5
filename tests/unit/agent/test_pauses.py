# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pauses in force, from the file and the Node's annotation, by the wall clock."""

import errno
import logging
from pathlib import Path

import pytest

from controller.agent.pauses import Pauses
from controller.core.model import Pause
from controller.host import pause_file
from controller.host.pause_file import (
    EVERYTHING,
    POLICY,
    SERVICE,
    WORKLOAD,
    PauseEntry,
    change_pauses,
)

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z


class Bench:
    """A host whose clock and annotation the test sets."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.now_s = NOW_S
        self.set_s = 0.0  # by how much the wall clock was set
        self.text: str | None = ""
        self.pauses = self.start()

    def start(self) -> Pauses:
        """Start the agent, again."""
        self.pauses = Pauses(
            self.state_dir,
            lambda: self.text,
            lambda: self.now_s,
            lambda: self.now_s - self.set_s,
        )
        return self.pauses

    def set_clock(self, by_s: float) -> None:
        self.now_s += by_s
        self.set_s += by_s

    def set(self, *entries: PauseEntry) -> None:
        change_pauses(self.state_dir, entries, (), self.now_s)

    @property
    def problem(self) -> str:
        return dict(self.pauses.state.problems).get("node", "")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_pause_of_a_policy_pauses_nothing_else_and_ends(bench: Bench) -> None:
    assert bench.pauses.policies == frozenset()
    bench.set(PauseEntry(POLICY, "canary", NOW_S + 60))
    assert bench.pauses.poll() is None
    assert bench.pauses.policies == {"canary"}
    bench.set(PauseEntry(SERVICE, "web", NOW_S + 30))
    assert bench.pauses.poll() == Pause(services=("web",))
    assert bench.pauses.policies == {"canary"}
    bench.start()
    bench.now_s += 60
    assert bench.pauses.poll() is None
    assert bench.pauses.policies == frozenset()


def test_the_file_is_followed_and_its_pauses_end(bench: Bench) -> None:
    assert bench.pauses.poll() is None
    bench.set(
        PauseEntry(SERVICE, "web", NOW_S + 60),
        PauseEntry(WORKLOAD, "batch", NOW_S + 30),
        PauseEntry(SERVICE, "db", NOW_S + 60),
    )
    found = bench.pauses.poll()
    assert found == Pause(services=("db", "web"), workloads=("batch",))
    assert bench.pauses.poll() is found
    bench.now_s += 30
    assert bench.pauses.poll() == Pause(services=("db", "web"))
    bench.set(PauseEntry(EVERYTHING, "", bench.now_s + 10))
    assert bench.pauses.poll() == Pause(everything=True)
    bench.now_s += 10
    assert bench.pauses.poll() == Pause(services=("db", "web"))
    bench.now_s += 20
    assert bench.pauses.poll() is None
    assert bench.pauses.state.entries == ()


def test_a_file_that_was_removed_pauses_nothing(bench: Bench) -> None:
    bench.set(PauseEntry(EVERYTHING, "", NOW_S + 60))
    assert bench.pauses.poll() is not None
    (bench.state_dir / "pause.json").unlink()
    assert bench.pauses.poll() is None


def test_a_duration_counts_from_when_it_was_first_read(bench: Bench) -> None:
    bench.text = "30m"
    assert bench.pauses.poll() == Pause(everything=True)
    assert bench.pauses.state.entries == (("node", PauseEntry(EVERYTHING, "", NOW_S + 1800)),)
    # A restart neither begins it anew nor forgets it while the API server is away.
    bench.now_s += 1000
    bench.text = None
    assert bench.start().poll() == Pause(everything=True)
    bench.text = "30m"
    assert bench.pauses.poll() == Pause(everything=True)
    bench.now_s += 800
    assert bench.pauses.poll() is None
    # Over, and not begun again by the text that is still there.
    bench.now_s += 10
    assert bench.pauses.poll() is None
    assert bench.start().poll() is None
    # Removed and set again, it is a new pause.
    bench.text = ""
    assert bench.pauses.poll() is None
    bench.text = "30m"
    assert bench.pauses.poll() == Pause(everything=True)


def test_an_annotation_that_was_removed_during_a_restart_ends_the_pause(bench: Bench) -> None:
    bench.text = "2027-01-15T09:00:00Z"
    assert bench.pauses.poll() is not None
    bench.text = None
    assert bench.start().poll() is not None
    bench.text = ""
    assert bench.pauses.poll() is None
    assert bench.start().poll() is None


def test_a_malformed_annotation_is_reported_once_and_ignored(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    bench.text = "tomorrow\x1b[31m"
    for _ in range(3):
        assert bench.pauses.poll() is None
    assert r"'tomorrow\x1b[31m' is neither" in bench.problem
    assert len(caplog.records) == 1
    assert "\x1b" not in caplog.text
    bench.text = "1h"
    assert bench.pauses.poll() == Pause(everything=True)
    assert bench.problem == ""


def test_a_damaged_note_of_an_earlier_run_is_ignored(bench: Bench) -> None:
    note = bench.state_dir / "pause-node.json"
    for text in ("{", "[]", '{"text": 1, "until_s": 1}', '{"text": "30m", "until_s": 1e300}'):
        note.write_text(text)
        bench.text = None
        assert bench.start().poll() is None


def test_without_space_for_the_note_the_pause_holds(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    (bench.state_dir / "pause-node.new").mkdir()
    bench.text = "30m"
    assert bench.pauses.poll() == Pause(everything=True)
    assert "count the pause from its start again" in caplog.text


@pytest.mark.parametrize("by_s", [-86400.0, -3.0, 3.0, 86400.0])
@pytest.mark.parametrize("source", ["file", "node"])
def test_a_pause_lasts_as_long_as_asked_though_the_clock_is_set(
    bench: Bench, source: str, by_s: float
) -> None:
    if source == "file":
        bench.set(PauseEntry(EVERYTHING, "", NOW_S + 60))
    else:
        bench.text = "1m"
    assert bench.pauses.poll() == Pause(everything=True)
    bench.now_s += 10
    bench.set_clock(by_s)
    bench.now_s += 49
    assert bench.pauses.poll() == Pause(everything=True)
    bench.now_s += 1
    assert bench.pauses.poll() is None
    bench.set_clock(-by_s)
    assert bench.pauses.poll() is None


def test_a_pause_that_is_added_after_the_clock_was_set_leaves_the_end_of_another(
    bench: Bench,
) -> None:
    bench.set(PauseEntry(SERVICE, "web", NOW_S + 60))
    assert bench.pauses.poll() == Pause(services=("web",))
    bench.set_clock(-600)
    bench.set(PauseEntry(SERVICE, "db", bench.now_s + 120))
    assert bench.pauses.poll() == Pause(services=("db", "web"))
    bench.now_s += 60
    assert bench.pauses.poll() == Pause(services=("db",))
    bench.now_s += 60
    assert bench.pauses.poll() is None


def test_what_was_refused_while_the_clock_was_wrong_counts_when_it_is_right(bench: Bench) -> None:
    bench.set(PauseEntry(SERVICE, "web", NOW_S + 3600))
    bench.text = "2027-01-15T09:00:00Z"
    bench.set_clock(-30 * 24 * 3600)
    assert bench.start().poll() is None
    assert bench.problem
    bench.set_clock(30 * 24 * 3600)
    assert bench.pauses.poll() == Pause(everything=True)
    bench.text = ""
    assert bench.pauses.poll() == Pause(services=("web",))


def test_a_file_that_could_not_be_read_for_a_moment_counts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.set(PauseEntry(SERVICE, "web", NOW_S + 60))

    def short(path: Path, at_most: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(pause_file, "read_file", short)
        assert bench.pauses.poll() is None
    bench.now_s += 1
    assert bench.pauses.poll() == Pause(services=("web",))
