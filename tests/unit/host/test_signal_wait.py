# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A wait ends with a signal, a readable file or the time, in this order."""

from collections.abc import Iterator
import os
import signal
import threading
import time

import pytest

from controller.core.units import NS_PER_SEC
from controller.host.signal_wait import READABLE, SignalWait

SIGNALS = {signal.SIGUSR1, signal.SIGRTMIN}
FAR_NS = 3600 * NS_PER_SEC


@pytest.fixture
def wait() -> Iterator[SignalWait]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    wait = SignalWait(SIGNALS)
    yield wait
    wait.close()
    while signal.sigtimedwait(SIGNALS, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def far_ns() -> int:
    return time.monotonic_ns() + FAR_NS


def test_the_time_ends_it(wait: SignalWait, pipe: tuple[int, int]) -> None:
    due_ns = time.monotonic_ns() + 1_500_000
    assert wait.until(due_ns, pipe[0]) is None
    assert time.monotonic_ns() >= due_ns
    assert wait.until(0, None) is None


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_it_once(wait: SignalWait, number: int) -> None:
    signal.pthread_kill(threading.get_ident(), number)
    assert wait.until(far_ns(), None) == number
    assert wait.until(0, None) is None


def test_a_signal_of_another_thread_ends_it(wait: SignalWait) -> None:
    waiter = threading.get_ident()
    sender = threading.Thread(target=lambda: signal.pthread_kill(waiter, signal.SIGUSR1))
    sender.start()
    assert wait.until(far_ns(), None) == signal.SIGUSR1
    sender.join()


def test_a_readable_file_ends_it_until_it_is_read(wait: SignalWait, pipe: tuple[int, int]) -> None:
    writer = threading.Thread(target=lambda: os.write(pipe[1], b"x"))
    writer.start()
    assert wait.until(far_ns(), pipe[0]) == READABLE
    writer.join()
    assert wait.until(far_ns(), pipe[0]) == READABLE
    os.read(pipe[0], 1)
    assert wait.until(0, pipe[0]) is None


def test_a_signal_comes_first_and_then_the_time(wait: SignalWait, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x")
    signal.pthread_kill(threading.get_ident(), signal.SIGRTMIN)
    assert wait.until(0, pipe[0]) == signal.SIGRTMIN
    assert wait.until(0, pipe[0]) is None
    assert wait.until(far_ns(), pipe[0]) == READABLE


def test_another_signal_breaks_no_wait_off(wait: SignalWait, pipe: tuple[int, int]) -> None:
    waiter, taken = threading.get_ident(), threading.Event()
    before = signal.signal(signal.SIGUSR2, lambda *_: taken.set())

    def send() -> None:
        signal.pthread_kill(waiter, signal.SIGUSR2)
        os.write(pipe[1], b"x")

    sender = threading.Thread(target=send)
    sender.start()
    assert wait.until(far_ns(), pipe[0]) == READABLE
    sender.join()
    assert taken.is_set()
    signal.signal(signal.SIGUSR2, before)


def test_each_of_two_files_ends_it(wait: SignalWait, pipe: tuple[int, int]) -> None:
    first, second = os.pipe()
    try:
        os.write(pipe[1], b"x")
        assert wait.until(far_ns(), first, pipe[0]) == READABLE
        assert wait.readable == [pipe[0]]
        assert wait.until(far_ns(), pipe[0], None) == READABLE
        os.write(second, b"x")
        assert wait.until(far_ns(), first, pipe[0]) == READABLE
        assert wait.readable == [first, pipe[0]]
        assert wait.until(0, first) is None
    finally:
        os.close(first)
        os.close(second)


def test_a_file_that_was_readable_once_is_told_with_what_came_first(
    wait: SignalWait, pipe: tuple[int, int]
) -> None:
    os.write(pipe[1], b"x")
    signal.pthread_kill(threading.get_ident(), signal.SIGRTMIN)
    assert wait.until(far_ns(), None, pipe[0]) == signal.SIGRTMIN
    assert wait.readable == [pipe[0]]
    assert wait.until(0, None, pipe[0]) is None
    assert wait.readable == [pipe[0]]
    assert wait.until(0, None, None) is None
    assert wait.readable == []
