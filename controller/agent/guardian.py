# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The guardian: parent process of the agent, restores the knobs when the agent cannot.

The guardian watches the agent by a pidfd and a heartbeat pipe. When the agent dies, all knobs are
restored and the agent is started again. An agent without a heartbeat for too long is killed first.

The guardian must survive when memory is short, so it stays small: it imports the standard library
only, and runs the agent and the restore in child processes, which import everything else.
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
_CONFIG_ERROR = 2
_POLL_S = 1.0
# After a gap longer than this between two polls, the guardian itself was not running, and a
# missing heartbeat does not mean that the agent hangs.
_SUSPENDED_S = 3.0


class Limits(NamedTuple):
    """Time limits of the guardian, in seconds.

    ``heartbeat_s``: an agent without a heartbeat for this long is killed. ``start_s`` replaces it
    until the first heartbeat, because compiling the probes takes seconds where CPUs are scarce,
    and no knob is held yet. ``stop_s``: time to end after SIGTERM. The guardian gives up after
    ``quick_deaths`` agents in a row that ended within ``quick_s``. Before a restart it waits
    ``backoff_s``, twice as long after each quick death.
    """

    heartbeat_s: float = 10.0
    start_s: float = 120.0
    stop_s: float = 5.0
    quick_s: float = 60.0
    quick_deaths: int = 5
    backoff_s: float = 0.5


_LIMITS = Limits()
# Shortest interval between two heartbeats: each wakes the guardian, which costs more than some
# ticks.
_BEAT_INTERVAL_S = 0.5


class Heartbeat:
    """The agent's end of the heartbeat pipe. Without *fd*, that is without a guardian, a no-op."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self._due_s = 0.0

    def beat(self) -> None:
        """Send a heartbeat unless the last one is recent. Never blocks, never raises."""
        now_s = time.monotonic()
        if self._fd is not None and now_s >= self._due_s:
            self._due_s = now_s + _BEAT_INTERVAL_S
            # A full pipe holds unread heartbeats. A broken one: the guardian is dead, and SIGTERM
            # for this process is on its way.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._fd, b".")

    def close(self) -> None:
        """Close the pipe; for children of the agent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class _AgentExit(NamedTuple):
    # Exit code of the agent (negative: signal), and whether it ended after a request to stop.
    code: int
    stopped: bool


def run(
    agent: Callable[[Heartbeat], int],
    *,
    lock: Lock,
    restore: Callable[[], bool],
    limits: Limits = _LIMITS,
) -> int:
    """Run *agent* in a child, restart it as needed, and return the exit code of the program.

    Call it from a process with one thread and before anything is opened: all file descriptors
    above 2 are closed, except the lock's. Both callables run in children and have to import what
    they need themselves.

    :param agent: returns the exit code of the agent. 0 (done) and 2 (invalid configuration) end
        the guardian too; after any other code the agent is started again.
    :param lock: held by guardian and agent, but not by children of the agent.
    :param restore: restores everything in the journal and returns whether all of it succeeded. It
        also runs before the first start, for leftovers of an earlier run.
    :return: 0, 2, or 1 after a crash loop or if a knob could not be restored at the end.
    """
    _close_inherited_fds(keep=lock.fileno())
    signals = _Signals()
    _restore_in_child(restore)
    quick_deaths = 0
    while True:
        started = time.monotonic()
        end = _run_agent_once(agent, lock, signals, limits)
        clean = _restore_in_child(restore)
        if end.stopped or end.code in (0, _CONFIG_ERROR):
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
    # Signals of the guardian as bytes in a pipe, so that one poll() waits for all events.

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
        # Wait, and return whether a signal asked to stop. SIGHUP is dropped: no agent runs.
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            select.select([self.read_fd], [], [], left)
            if any(number != signal.SIGHUP for number in self.pop()):
                return True
        return False

    def reset_in_child(self) -> None:
        # Default handlers again, as at the start of a program. Except for SIGHUP: a reload
        # requested before the agent handles signals must not kill it, and is not needed, because
        # the agent is just reading the newest configuration.
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.close(self.read_fd)
        os.close(self._write_fd)


def _run_agent_once(
    agent: Callable[[Heartbeat], int], lock: Lock, signals: _Signals, limits: Limits
) -> _AgentExit:
    beats_fd, beat_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    guardian = os.getpid()
    # A signal right after the fork must not run the guardian's handlers in the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    pid = _fork()
    if pid == 0:
        os.close(beats_fd)
        signals.reset_in_child()
        _exit_child(lambda: _run_agent(agent, Heartbeat(beat_fd), lock, guardian))
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
    return _AgentExit(os.waitstatus_to_exitcode(status), stopped)


def _watch(pidfd: int, beats_fd: int, signals: _Signals, limits: Limits) -> bool:
    # Return when the agent is dead: True if it had been asked to stop.
    poll = select.poll()
    for fd in (pidfd, beats_fd, signals.read_fd):
        poll.register(fd, select.POLLIN)
    polled = time.monotonic()
    deadline = polled + limits.start_s
    stopped = False
    while True:
        ready = {fd for fd, _ in poll.poll(1000 * min(_POLL_S, max(0.0, deadline - polled)))}
        now = time.monotonic()
        if pidfd in ready:
            return stopped
        if beats_fd in ready:
            if not _drain(beats_fd):
                poll.unregister(beats_fd)  # closed: the agent is ending, its pidfd follows
            elif not stopped:
                deadline = now + limits.heartbeat_s
        for number in signals.pop():
            if number == signal.SIGHUP:
                signal.pidfd_send_signal(pidfd, signal.SIGHUP)
            elif not stopped:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                stopped = True
                deadline = now + limits.stop_s
        if now - polled > _SUSPENDED_S:
            deadline = max(deadline, now + limits.stop_s)
        if now >= deadline:
            what = "does not stop" if stopped else "is silent"
            _log.error("the agent %s: killing it", what)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            deadline = now + limits.stop_s
        polled = now


def _run_agent(
    agent: Callable[[Heartbeat], int], heartbeat: Heartbeat, lock: Lock, guardian: int
) -> int:
    # The kernel sends SIGTERM when the guardian dies: the agent then restores the knobs itself.
    from controller.host.facts import die_with_parent  # here, so that the guardian stays small
    from controller.host.own_cgroup import raise_session

    raise_session()
    die_with_parent(signal.SIGTERM)
    if os.getppid() != guardian:
        return 1  # the guardian died before that call
    os.register_at_fork(after_in_child=heartbeat.close)
    os.register_at_fork(after_in_child=lock.close)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return agent(heartbeat)


def _restore_in_child(restore: Callable[[], bool]) -> bool:
    # Restore in a child, whose memory and crashes do not affect the guardian. The child holds the
    # lock until it ends, even if the guardian is killed.
    try:
        pid = _fork()
    except OSError as error:
        _log.warning("cannot fork for the restore (%s): restoring in the guardian", error)
        return restore()
    if pid == 0:
        _exit_child(lambda: 0 if restore() else 1)
    clean = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    if not clean:
        _log.error("not all knobs could be restored: see above, then run 'sweetpoint release'")
    return clean


def _fork() -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the child prints the content of the buffer again
    return os.fork()


def _exit_child(body: Callable[[], int]) -> NoReturn:
    # A forked child must not return into the guardian's stack, even after an exception.
    code = 1
    try:
        code = body()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # the process ends here: print the traceback
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _drain(fd: int) -> bool:
    # Empty the pipe; False at end of file.
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
