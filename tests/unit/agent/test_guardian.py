# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The guardian's time limits, on a clock of the test: when it kills an agent, and when it waits.

With real processes: ``tests/kernel/test_guardian.py``.
"""

from collections.abc import Iterator
import errno
import itertools
import os
from pathlib import Path
import select
import signal
import tempfile
from types import SimpleNamespace
from typing import cast

import pytest

from controller.agent import guardian, silence
from controller.host.service_manager import ServiceManager
from controller.host.state_dir import Lock
from controller.host.threads import Threads, _Thread

LIMITS = guardian.Limits(heartbeat_s=10.0, start_s=120.0, stop_s=5.0)
PIDFD = 1000  # of no process: nothing is sent to it
PID = 1 << 30  # of no process
BEAT, DIES = "beat", "dies"
DAY_S = 86_400.0  # longer than any script: a guardian that waits for ever is an error, not a hang


class World(guardian._Signals):
    """An agent and its signals by a script; time passes while the guardian waits for events.

    ``events``: what happens when, in seconds: a heartbeat, the agent's death, a signal for the
    guardian. ``suspended``: from when to when the guardian does not run. ``sent``: the signals that
    the guardian sends to the agent, and when. ``obeys``: whether the agent dies of SIGKILL.
    """

    def __init__(self, *events: tuple[float, str | int], obeys: bool = True) -> None:
        self.read_fd = PIDFD + 1
        self.beats_fd, self._beat_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._state_dir = tempfile.TemporaryDirectory(prefix="sweetpoint-test-")
        self._lock = Lock(Path(self._state_dir.name))
        self._events = list(events)
        self._obeys = obeys
        self.suspended = (0.0, 0.0)
        self.now_s = 0.0
        self.sent: list[tuple[float, int]] = []
        self.told: list[tuple[float, bytes]] = []
        self.manager = Manager(self)
        self._dead = False
        self._pending: list[int] = []

    def close(self) -> None:
        os.close(self.beats_fd)
        os.close(self._beat_fd)
        self._lock.close()
        self._state_dir.cleanup()

    def watch(self, limits: guardian.Limits = LIMITS) -> bool:
        """Return whether the agent had been asked to stop."""
        stopped, killed = guardian._watch(
            PIDFD,
            self.beats_fd,
            self,
            limits,
            self._lock,
            self.manager,
            silence.Silence(PID, limits.heartbeat_s, limits.starved_s),
        )
        assert killed == any(number == signal.SIGKILL for _, number in self.sent)
        return stopped

    def pop(self) -> list[int]:
        pending, self._pending = self._pending, []
        return pending

    def send(self, pidfd: int, number: int) -> None:
        assert pidfd == PIDFD
        self.sent.append((round(self.now_s, 3), number))
        self._dead = number == signal.SIGKILL and self._obeys

    def monotonic(self) -> float:
        return self.now_s

    def register(self, fd: int, events: int) -> None:
        """As the method of select.poll objects."""

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        """Wait for the next events, at most as long as asked, or until a suspension is over."""
        assert self.now_s < DAY_S, "the guardian does not end"
        until_s = self.now_s + timeout_ms / 1000
        if self._dead:
            return [(PIDFD, select.POLLIN)]
        if self._events and self._events[0][0] <= until_s:
            until_s = self._events[0][0]
        begin_s, end_s = self.suspended
        self.now_s = end_s if begin_s <= until_s < end_s else until_s
        ready = set()
        while self._events and self._events[0][0] <= self.now_s:
            ready.add(self._happen(self._events.pop(0)[1]))
        return [(fd, select.POLLIN) for fd in ready]

    def _happen(self, event: str | int) -> int:
        if event == BEAT:
            os.write(self._beat_fd, b".")
            return self.beats_fd
        if event == DIES:
            return PIDFD
        assert isinstance(event, int)
        self._pending.append(event)
        return self.read_fd


class Manager(ServiceManager):
    """Notes what is told to the service manager, and when."""

    def __init__(self, world: World) -> None:
        super().__init__("@", watchdog_s=60.0)
        self._world = world

    def _send(self, message: bytes) -> None:
        self._world.told.append((round(self._world.now_s, 3), message))


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    """Where a test puts its world: the guardian then waits in it."""
    made: list[World] = []
    poll = SimpleNamespace(poll=lambda: made[-1], POLLIN=select.POLLIN)
    monkeypatch.setattr(guardian, "select", poll)
    monkeypatch.setattr(guardian, "time", SimpleNamespace(monotonic=lambda: made[-1].monotonic()))
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *words: made[-1].send(*words))
    yield made
    for world in made:
        world.close()


def test_heartbeats_keep_an_agent_alive_and_silence_ends_it(worlds: list[World]) -> None:
    beats = [(9.9 * number, BEAT) for number in range(1, 1000)]
    worlds.append(world := World(*beats))
    assert not world.watch()
    assert world.sent == [(round(beats[-1][0] + LIMITS.heartbeat_s, 3), signal.SIGKILL)]


def test_an_agent_that_waits_for_a_cpu_may_be_silent_longer(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_threads(_pid: int) -> Threads:
        # One thread, which waits until the second 40 and sleeps from then on.
        queued_ns = int(min(world.now_s, 40.0) * 1e9)
        return Threads(int(world.now_s * 1e9), {1: _Thread("main", "S", "-", 0, queued_ns)})

    monkeypatch.setattr(silence, "read_threads", read_threads)
    worlds.append(world := World((1.0, BEAT), (39.0, BEAT)))
    assert not world.watch()
    assert world.sent == [(39.0 + LIMITS.heartbeat_s, signal.SIGKILL)]
    assert caplog.text.count("the agent is silent for 10s: it waits for a CPU") == 1
    worlds.append(world := World((1.0, BEAT)))
    assert not world.watch(LIMITS._replace(starved_s=30.0))
    assert world.sent == [(1.0 + 30.0, signal.SIGKILL)]


def test_until_the_first_heartbeat_a_start_may_take_longer(worlds: list[World]) -> None:
    worlds.append(world := World((119.0, BEAT), (125.0, DIES)))
    assert not world.watch()
    assert world.sent == []
    worlds.append(world := World())
    assert not world.watch()
    assert world.sent == [(LIMITS.start_s, signal.SIGKILL)]


def test_a_pause_of_the_whole_host_is_not_a_missing_heartbeat(worlds: list[World]) -> None:
    worlds.append(world := World((1.0, BEAT), (3604.0, BEAT), (3613.0, DIES)))
    world.suspended = (2.0, 3600.0)
    assert not world.watch()
    assert world.sent == []
    # What is silent after the pause as well is killed, when its threads were compared.
    worlds.append(world := World((1.0, BEAT)))
    world.suspended = (2.0, 3600.0)
    assert not world.watch()
    compared_s = 3600.0 + LIMITS.stop_s
    assert world.sent == [(compared_s + LIMITS.heartbeat_s / 10, signal.SIGKILL)]


def test_a_pause_of_the_whole_host_takes_no_time_of_a_restore(worlds: list[World]) -> None:
    worlds.append(world := World((3611.0, DIES)))
    world.suspended = (2.0, 3600.0)
    assert guardian._ends(PIDFD, LIMITS.restore_s)
    # What takes longer without a pause, or after it, does not end in time.
    worlds.append(world := World((LIMITS.restore_s + 0.1, DIES)))
    assert not guardian._ends(PIDFD, LIMITS.restore_s)
    assert world.now_s == pytest.approx(LIMITS.restore_s)
    worlds.append(world := World())
    world.suspended = (2.0, 3600.0)
    assert not guardian._ends(PIDFD, LIMITS.restore_s)
    assert world.now_s == pytest.approx(3600.0 + LIMITS.restore_s)


def test_signals_are_passed_on_and_a_stop_has_its_own_limit(worlds: list[World]) -> None:
    worlds.append(world := World((1.0, BEAT), (2.0, signal.SIGHUP), (3.0, signal.SIGINT)))
    assert world.watch()
    assert world.sent == [
        (2.0, signal.SIGHUP),
        (3.0, signal.SIGTERM),
        (3.0 + LIMITS.stop_s, signal.SIGKILL),
    ]
    worlds.append(world := World((1.0, BEAT), (3.0, signal.SIGTERM), (7.9, DIES)))
    assert world.watch()
    assert world.sent == [(3.0, signal.SIGTERM)]


def test_a_heartbeat_during_a_stop_gains_no_time(worlds: list[World]) -> None:
    worlds.append(world := World((1.0, BEAT), (3.0, signal.SIGTERM), (7.0, BEAT)))
    assert world.watch()
    assert world.sent[-1] == (3.0 + LIMITS.stop_s, signal.SIGKILL)


def test_an_agent_that_outlives_sigkill_is_left(
    worlds: list[World], caplog: pytest.LogCaptureFixture
) -> None:
    worlds.append(world := World((1.0, BEAT), obeys=False))
    assert not world.watch()
    assert world.sent == [(11.0, signal.SIGKILL)]
    assert world.now_s == pytest.approx(11.0 + LIMITS.stop_s)
    assert "hangs in the kernel" in caplog.text


def test_the_service_is_ready_with_the_first_heartbeat(worlds: list[World]) -> None:
    worlds.append(world := World((70.0, BEAT), (70.5, BEAT), (71.0, signal.SIGTERM), (72.0, DIES)))
    assert world.watch()
    told = [each for each in world.told if each[1] != b"WATCHDOG=1"]
    assert told == [(70.0, b"READY=1"), (71.0, b"STOPPING=1")]


def test_the_guardian_speaks_for_an_agent_that_starts_works_or_is_killed(
    worlds: list[World],
) -> None:
    """Silence of the guardian for 60 s would have the manager restart the service."""
    beats = [(100.0 + 5 * number, BEAT) for number in range(40)]
    worlds.append(world := World(*beats, obeys=False))
    assert not world.watch()
    assert world.sent  # it became silent, and was killed in vain
    alive = [now_s for now_s, message in world.told if message == b"WATCHDOG=1"]
    gaps = [late - early for early, late in itertools.pairwise([0.0, *alive, world.now_s])]
    assert max(gaps) <= 60 / 4 + 1
    assert len(alive) < 2 * world.now_s / (60 / 4)


def test_a_guardian_that_does_not_run_is_not_alive(worlds: list[World]) -> None:
    worlds.append(world := World((1.0, BEAT), (205.0, DIES)))
    world.suspended = (2.0, 200.0)
    assert not world.watch()
    assert not [now_s for now_s, _ in world.told if 2.0 < now_s < 200.0]


def test_an_agent_that_cannot_be_forked_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As beside a fork bomb: a guardian that ended would leave the node without an agent."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "no process")

    monkeypatch.setattr(guardian, "_fork", fork)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ()), len(os.listdir("/proc/self/fd"))
    lock, signals = Lock(tmp_path), cast("guardian._Signals", None)  # not needed before the fork
    manager = ServiceManager.of_environment()
    end = guardian._run_agent_once(lambda _: 0, lock, signals, LIMITS, None, manager, {})
    lock.close()
    assert end is None
    after = signal.pthread_sigmask(signal.SIG_BLOCK, ()), len(os.listdir("/proc/self/fd"))
    assert after == before
