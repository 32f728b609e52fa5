# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings on a full disk: whole at any time, without a gap, and no error for the tick."""

from collections.abc import Iterator
from dataclasses import replace
import errno
import io
import logging
import os
from pathlib import Path

import pytest

from controller.agent import recording
from controller.agent.recording import Entry, Recorder, read, replay
from controller.core.planner import Planner
from controller.demo.simulated_node import SimulatedNode
from tests.support.loops.closed_loop import TICK_NS, make_settings
from tests.support.needs import needs_root

as_root = needs_root("to mount")


def ticks() -> Iterator[Entry]:
    node, settings = SimulatedNode(1), make_settings()
    planner = Planner(settings, node.workloads)
    for tick in range(1000):
        snapshot = node.snapshot(tick * TICK_NS)
        entry = Entry(snapshot=snapshot, outcomes=(), plan=planner.step(snapshot, ()))
        if tick == 0:
            entry = replace(entry, anew=True, settings=settings, workloads=node.workloads)
        yield entry


def fill(disk: Path) -> Path:
    """Leave less space than a member takes, and return the file that takes it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            if file.tell() == 56 << 10:
                break
    return ballast


def replayed(path: Path) -> int:
    """Return the number of entries of the recording, which is whole."""
    again = [entry.plan == plan for entry, plan in replay(read(path))]
    assert all(again)
    return len(again)


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [
        (each.levelno, each.getMessage().partition(" ")[2].partition("ticks ")[2])
        for each in caplog.records
    ]


@as_root
def test_it_goes_on_without_a_gap_when_there_is_space_again(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path, entries = small_disk / "ticks", ticks()
    with Recorder(path) as recorder:
        ballast = fill(small_disk)
        for tick in range(170):
            recorder.write(next(entries))
            if tick % 20 == 0:
                assert replayed(path) % 25 == 0
        written = replayed(path)
        assert written < 170
        assert [text for _, text in messages(caplog)] == [
            "cannot be written (No space left on device), and is kept in memory"
        ]
        ballast.unlink()
        for _ in range(35):
            recorder.write(next(entries))
        assert replayed(path) == 200
    assert replayed(path) == 205
    assert [text for _, text in messages(caplog)][1:] == ["is written again, without a gap"]


@as_root
def test_it_ends_whole_when_too_much_waits(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_MAX_WAITING", 30_000)
    path, entries = small_disk / "ticks", ticks()
    with Recorder(path) as recorder:
        ballast = fill(small_disk)
        for _ in range(400):
            recorder.write(next(entries))
        written = replayed(path)
        ballast.unlink()
        for _ in range(400):
            recorder.write(next(entries))
    assert replayed(path) == written
    assert messages(caplog)[-1] == (
        logging.ERROR,
        "ends early, because it cannot be written (No space left on device)",
    )
    assert len(caplog.records) == 2


@as_root
def test_what_waits_at_the_end_is_told(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, entries = small_disk / "ticks", ticks()
    with Recorder(path) as recorder:
        fill(small_disk)
        for _ in range(200):
            recorder.write(next(entries))
    assert replayed(path) < 200
    assert messages(caplog)[-1][1].startswith("ends early")


class StuckFile(io.FileIO):
    """A file that cannot be made shorter, and whose file system is found to be full at the end."""

    def truncate(self, _size: int | None = None, /) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if not self.closed:
            super().close()
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def test_a_part_that_cannot_be_cut_off_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = [False, True, True, False]

    def write(fd: int, data: bytes) -> None:
        if full and full.pop(0):
            os.write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.write(fd, data)

    def opened(path: Path, _mode: str, buffering: int) -> StuckFile:
        assert buffering == 0
        return StuckFile(path, "wb")

    monkeypatch.setattr(recording, "write_whole", write)
    path, entries = tmp_path / "ticks", ticks()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        recorder = Recorder(path)
    for _ in range(110):
        recorder.write(next(entries))
    recorder.close()
    assert replayed(path) == 110
    assert messages(caplog)[-1] == (logging.ERROR, "may lack its end (Disk quota exceeded)")
