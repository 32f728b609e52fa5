# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The threads of a process: what each does, and how many of them wait for a CPU."""

import os
from pathlib import Path
import threading

import pytest

from controller.host.threads import Threads, read_threads
from tests.support.waiting import eventually

SECOND_NS = 10**9


def make_task(proc: Path, tid: int, state: str, cpu_ns: int, queued_ns: int) -> None:
    task = proc / "7" / "task" / str(tid)
    task.mkdir(parents=True, exist_ok=True)
    (task / "stat").write_text(f"{tid} (a) b) {state} 1 1\n")
    (task / "schedstat").write_text(f"{cpu_ns} {queued_ns} 12\n")
    (task / "wchan").write_text("0" if state == "R" else "futex_do_wait")


def read(proc: Path, read_ns: int) -> Threads:
    return read_threads(7, proc)._replace(read_ns=read_ns)


def test_the_threads_of_this_process() -> None:
    done = threading.Event()
    waiting = threading.Thread(target=done.wait)
    waiting.start()
    try:
        threads = read_threads(os.getpid()).by_id
        assert threads.keys() >= {os.getpid(), waiting.native_id}
        assert threads[os.getpid()].state == "R"
        assert threads[os.getpid()].cpu_ns > 0
    finally:
        done.set()
        waiting.join()
    # A thread that was joined is still in /proc for a moment.
    eventually("its end", lambda: waiting.native_id not in read_threads(os.getpid()).by_id)


def test_a_process_that_has_ended_has_no_threads() -> None:
    assert read_threads(1 << 30).by_id == {}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("R", 5, 100), ("R", 5, 100), 1.0),  # runnable, and has not run
        (("R", 5, 100), ("R", 6, 100 + SECOND_NS // 4), 0.25),  # has run once
        (("S", 5, 100), ("S", 5, 100), 0.0),  # sleeps
        (("S", 5, 100), ("R", 5, 100), 0.0),  # has just become runnable
        (("R", 5, 100), ("R", SECOND_NS, 100), 0.0),  # runs all the time
        (("T", 5, 100), ("T", 5, 100), 0.0),  # is stopped
    ],
)
def test_a_thread_waits_while_it_is_runnable_and_does_not_run(
    tmp_path: Path,
    before: tuple[str, int, int],
    after: tuple[str, int, int],
    expected: float,
) -> None:
    make_task(tmp_path, 7, *before)
    first = read(tmp_path, 0)
    make_task(tmp_path, 7, *after)
    assert read(tmp_path, SECOND_NS).waited_ratio(first) == pytest.approx(expected)


def test_threads_that_come_and_go_do_not_count(tmp_path: Path) -> None:
    make_task(tmp_path, 7, "R", 5, 100)
    first = read(tmp_path, 0)
    (tmp_path / "7/task/7").rename(tmp_path / "7/task/8")
    assert read(tmp_path, SECOND_NS).waited_ratio(first) == 0.0


def test_a_line_says_what_each_thread_does(tmp_path: Path) -> None:
    make_task(tmp_path, 7, "R", 1_500_000_000, 0)
    make_task(tmp_path, 8, "S", 10_000_000, 0)
    assert sorted(str(read(tmp_path, 0)).split(", ")) == [
        "a) b R 0 1.50s",
        "a) b S futex_do_wait 0.01s",
    ]
