# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The parent of the agent: undoes what the agent did when the agent cannot do it itself.

It watches the agent by pidfd and by a heartbeat pipe. When the agent dies, or is silent for
too long (then it is killed first), all knobs are restored and the agent is started again.

The guardian stays small because it must live when memory is short: it imports only the
standard library, and runs agent and restore in children of their own, which import the rest.
"""

from collections.abc import Callable
import contextlib
import logging
import os
from pathlib import Path
import select
import signal
import sys
import time
from typing import NamedTuple, NoReturn

from controller.host.state_dir import Lock

__all__ = ("Heartbeat", "Limits", "run")

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WRONG_CONFIG = 2
_POLL_S = 1.0
# Longer than this between two looks: the guardian itself was stopped, not only the agent.
_STOPPED_OURSELVES_S = 3.0


class Limits(NamedTuple):
    """How long the guardian waits for what, in seconds.

    ``start_s`` replaces ``heartbeat_s`` until the first beat: compiling probes takes seconds
    where CPUs are scarce, and no knob is held yet. A death within ``quick_s`` is a
    quick one; after ``quick_deaths`` of them in a row the guardian gives up. Before each start
    it waits ``backoff_s``, doubling.
    """

    heartbeat_s: float = 10.0
    start_s: float = 120.0
    stop_s: float = 5.0
    quick_s: float = 60.0
    quick_deaths: int = 5
    backoff_s: float = 0.5


_LIMITS = Limits()
# Every beat wakes the guardian up, which costs more than some ticks.
_BEAT_S = 0.5


class Heartbeat:
    """The agent's end of the pipe; without an fd (no guardian) it does nothing."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self._due_s = 0.0

    def beat(self) -> None:
        """Say that the agent is alive, if it was not said just now. Never blocks, never raises."""
        now_s = time.monotonic()
        if self._fd is not None and now_s >= self._due_s:
            self._due_s = now_s + _BEAT_S
            # A full pipe says it as well; a broken one means that our own end is near.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._fd, b".")

    def close(self) -> None:
        """Close the pipe in a process that is not the agent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class _End(NamedTuple):
    # How an agent's life ended: exit code (negative: signal), and whether it was told to stop.
    code: int
    stopped: bool


def run(
    agent: Callable[[Heartbeat], int],
    *,
    lock: Lock,
    restore: Callable[[], bool],
    limits: Limits = _LIMITS,
) -> int:
    """Guard *agent* until it ends for good, and return the exit code of the program.

    Call it with one thread and before opening anything: all fds above 2 but the lock's are
    closed. Both callables run in children; import what they need inside them.

    :param agent: the agent's life, returns its exit code; 0 (done) and 2 (wrong config) end
        the guardian as well, everything else starts it again.
    :param lock: held by guardian and agent, but by no child of the agent.
    :param restore: undoes everything in the journal, returns whether all of it worked; also
        runs before the first start, for what an earlier run left.
    :return: 0, 2, or 1 after a crash loop or if a knob could not be restored at the end.
    """
    _close_inherited_fds(keep=lock.fileno())
    signals = _Signals()
    _in_child(restore)
    quick_deaths = 0
    while True:
        started = time.monotonic()
        end = _guard_one_life(agent, lock, signals, limits)
        clean = _in_child(restore)
        if end.stopped or end.code in (0, _WRONG_CONFIG):
            return max(end.code, 0) if clean else max(end.code, 1)
        quick = time.monotonic() - started < limits.quick_s
        quick_deaths = quick_deaths + 1 if quick else 1
        if quick_deaths >= limits.quick_deaths:
            _log.error("the agent died %d times in a row: giving up", quick_deaths)
            return 1
        wait_s = limits.backoff_s * 2 ** (quick_deaths - 1)
        _log.error("the agent ended with %d: starting it again in %.1fs", end.code, wait_s)
        if signals.stop_within(wait_s):
            return 0 if clean else 1


class _Signals:
    # Signals of the guardian as bytes in a pipe, so that one poll waits for everything.

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda _number, _frame: None)

    def pop(self) -> list[int]:
        try:
            return list(os.read(self.read_fd, 512))
        except BlockingIOError:
            return []

    def stop_within(self, seconds: float) -> bool:
        # Whether we are told to stop in the time given; a reload has nobody to reach.
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            select.select([self.read_fd], [], [], left)
            if any(number != signal.SIGHUP for number in self.pop()):
                return True
        return False

    def leave(self) -> None:
        # In a child: back to what a program starts with. A reload may come before the agent
        # is ready for it and must not kill it: it is just reading the newest configuration.
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.close(self.read_fd)
        os.close(self._write_fd)


def _guard_one_life(
    agent: Callable[[Heartbeat], int], lock: Lock, signals: _Signals, limits: Limits
) -> _End:
    beats_fd, beat_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    guardian = os.getpid()
    # A signal in the moment after the fork must not land in the handlers of the other one.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    pid = _fork()
    if pid == 0:
        os.close(beats_fd)
        signals.leave()
        _exit_with(lambda: _agent_life(agent, Heartbeat(beat_fd), lock, guardian))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.close(beat_fd)
    pidfd = os.pidfd_open(pid)
    try:
        lock.set_owners([guardian, pid])
        stopped = _watch(pidfd, beats_fd, signals, limits)
        status = os.waitpid(pid, 0)[1]
    finally:
        os.close(pidfd)
        os.close(beats_fd)
        lock.set_owners([guardian])
    return _End(os.waitstatus_to_exitcode(status), stopped)


def _watch(pidfd: int, beats_fd: int, signals: _Signals, limits: Limits) -> bool:
    # Returns when the agent is dead; True if it was told to stop.
    poll = select.poll()
    for fd in (pidfd, beats_fd, signals.read_fd):
        poll.register(fd, select.POLLIN)
    looked = time.monotonic()
    deadline = looked + limits.start_s
    stopped = False
    while True:
        ready = {fd for fd, _ in poll.poll(1000 * min(_POLL_S, max(0.0, deadline - looked)))}
        now = time.monotonic()
        if pidfd in ready:
            return stopped
        if beats_fd in ready:
            if not _drain(beats_fd):
                poll.unregister(beats_fd)  # closed by a dying agent: the pidfd will tell
            elif not stopped:
                deadline = now + limits.heartbeat_s
        for number in signals.pop():
            if number == signal.SIGHUP:
                signal.pidfd_send_signal(pidfd, signal.SIGHUP)
            elif not stopped:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                stopped = True
                deadline = now + limits.stop_s
        if now - looked > _STOPPED_OURSELVES_S:
            deadline = max(deadline, now + limits.stop_s)
        if now >= deadline:
            what = "does not stop" if stopped else "is silent"
            _log.error("the agent %s: killing it", what)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            deadline = now + limits.stop_s
        looked = now


def _agent_life(
    agent: Callable[[Heartbeat], int], heartbeat: Heartbeat, lock: Lock, guardian: int
) -> int:
    # SIGTERM when the guardian dies: the agent then restores by itself.
    from controller.host.facts import die_with_parent  # here, so that the guardian stays small

    die_with_parent(signal.SIGTERM)
    if os.getppid() != guardian:
        return 1  # it died before we asked
    os.register_at_fork(after_in_child=heartbeat.close)
    os.register_at_fork(after_in_child=lock.close)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return agent(heartbeat)


def _in_child(restore: Callable[[], bool]) -> bool:
    # Restore in a process that may grow and crash as it likes. It keeps the lock until it is
    # done, also when the guardian is killed meanwhile.
    try:
        pid = _fork()
    except OSError as error:
        _log.warning("no process for the restore (%s): doing it in the guardian", error)
        return restore()
    if pid == 0:
        _exit_with(lambda: 0 if restore() else 1)
    clean = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    if not clean:
        _log.error("not all knobs could be restored: see above, and 'sweetpoint release'")
    return clean


def _fork() -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the child prints what is still in the buffer once more
    return os.fork()


def _exit_with(life: Callable[[], int]) -> NoReturn:
    # A forked child must never return into the guardian's stack, whatever happens in it.
    code = 1
    try:
        code = life()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # the process ends here, and says why
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _drain(fd: int) -> bool:
    # Empty the pipe; False at its end.
    try:
        while data := os.read(fd, 4096):
            if len(data) < 4096:
                return True
    except BlockingIOError:
        return True
    return False


def _close_inherited_fds(keep: int) -> None:
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd != keep:
            with contextlib.suppress(OSError):
                os.close(fd)
