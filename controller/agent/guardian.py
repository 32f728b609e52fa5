# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The guardian: parent process of the agent, restores the knobs when the agent cannot.

The guardian watches the agent by a pidfd and a heartbeat pipe. When the agent dies, all knobs are
restored and the agent is started again. An agent without a heartbeat for too long is killed first.

The guardian must survive when memory is short, so it stays small: it imports the standard library
only, and runs the agent and the restore in child processes, which import everything else. Where
permitted, guardian and restore are exempt from the OOM killer; the agent and its children are not.
"""

from collections.abc import Callable, Mapping
import contextlib
import logging
import os
from pathlib import Path
import select
import signal
import sys
import time
from typing import NamedTuple, NoReturn

from controller.agent.agent_end import RESTART_REASONS, AgentEnd, explain_end
from controller.agent.silence import Silence
from controller.host.oom import read_oom
from controller.host.service_manager import ServiceManager
from controller.host.state_dir import Lock, LockError, release_command

__all__ = ("Heartbeat", "Limits", "run")

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CONFIG_ERROR = 2
_POLL_S = 1.0
# How long a killed process may take to end. One that hangs in the kernel does not, and is left.
_KILLED_S = 1.0
# After a gap longer than this between two polls, the guardian itself was not running, and a
# missing heartbeat does not mean that the agent hangs.
_SUSPENDED_S = 3.0
# The pause after a failed fork: each try costs a page table.
_FORK_AGAIN_S = 5.0


class Limits(NamedTuple):
    """Time limits of the guardian, in seconds.

    ``heartbeat_s``: an agent without a heartbeat for this long is killed. ``starved_s`` replaces it
    while the agent waits for a CPU, because a new agent would wait as well, and would have to start
    first. ``start_s`` replaces it until the first heartbeat, because compiling the probes takes
    seconds where CPUs are scarce, and no knob is held yet. ``stop_s``: time to end after SIGTERM,
    which begins with the restore. ``restore_s``: after it a restore is killed, and made
    ``restores`` times at most. It takes up to a second of CPU time, knobs that are restored stay
    so, and service managers mostly allow 30 s for a stop. The guardian gives up after
    ``quick_deaths`` agents in a row that ended within ``quick_s``. Before a restart it waits
    ``backoff_s``, twice as long after each quick death.
    """

    heartbeat_s: float = 10.0
    starved_s: float = 60.0
    start_s: float = 120.0
    stop_s: float = 10.0
    restore_s: float = 12.0
    restores: int = 2
    quick_s: float = 60.0
    quick_deaths: int = 5
    backoff_s: float = 0.5


_LIMITS = Limits()
# Shortest interval between two heartbeats: each wakes the guardian, which costs more than some
# ticks.
_BEAT_INTERVAL_S = 0.5


class Heartbeat:
    """The agent's end of the heartbeat pipe. Without *fd*, that is without a guardian, a no-op.

    ``restarts`` is how often the guardian has started an agent again, by ``RESTART_REASONS``.
    """

    def __init__(self, fd: int | None = None, restarts: Mapping[str, int] | None = None) -> None:
        self._fd = fd
        self.restarts = dict.fromkeys(RESTART_REASONS, 0) | dict(restarts or {})
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


def run(
    agent: Callable[[Heartbeat], int],
    *,
    lock: Lock,
    restore: Callable[[], bool],
    limits: Limits = _LIMITS,
    memory: Path | None = None,
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
    :param memory: the memory cgroup of this process, to tell why an agent was killed.
    :return: 0, 2, or 1 after a crash loop or if a knob could not be restored at the end.
    """
    _close_inherited_fds(keep=lock.fileno())
    oom_score_adj = _exempt_from_oom_killer()
    signals = _Signals()
    manager = ServiceManager.of_environment()
    _restore_in_child(restore, limits, lock)
    quick_deaths = 0
    restarts: dict[str, int] = {}
    while True:
        started, before = time.monotonic(), read_oom(memory)
        end = _run_agent_once(agent, lock, signals, limits, oom_score_adj, manager, restarts)
        if end is None:
            manager.alive(time.monotonic())
            if signals.stop_within(_FORK_AGAIN_S):
                return 0 if _restore_in_child(restore, limits, lock) else 1
            continue
        reason, why = explain_end(end, before, read_oom(memory))
        clean = _restore_in_child(restore, limits, lock)
        manager.alive(time.monotonic())  # both took their limit at most
        if end.stopped or end.code in (0, _CONFIG_ERROR):
            return max(end.code, 0) if clean else max(end.code, 1)
        quick = time.monotonic() - started < limits.quick_s
        quick_deaths = quick_deaths + 1 if quick else 1
        if quick_deaths >= limits.quick_deaths:
            _log.error("the agent %s", why)
            _log.error("the agent died %d times in a row: giving up", quick_deaths)
            return 1
        restarts[reason] = restarts.get(reason, 0) + 1
        wait_s = limits.backoff_s * 2 ** (quick_deaths - 1)
        _log.error("the agent %s: starting it again in %.1fs", why, wait_s)
        if signals.stop_within(wait_s):
            return 0 if clean else 1


_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")
# OOM_SCORE_ADJ_MIN. Such a process also survives when all others of its cgroup are killed, as
# kubelet demands for containers by memory.oom.group (oom_kill_memcg_member in mm/oom_kill.c).
_EXEMPT = -1000


def _exempt_from_oom_killer() -> int | None:
    # Returns the value for the agent; None: unchanged, because this needs CAP_SYS_RESOURCE.
    try:
        before = int(_OOM_SCORE_ADJ.read_text(encoding="ascii"))
        _OOM_SCORE_ADJ.write_text(str(_EXEMPT), encoding="ascii")
    except OSError as error:
        _log.debug("the guardian is not exempt from the OOM killer: %s", error.strerror)
        return None
    return max(before, _EXEMPT + 1)


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
    agent: Callable[[Heartbeat], int],
    lock: Lock,
    signals: _Signals,
    limits: Limits,
    oom_score_adj: int | None,
    manager: ServiceManager,
    restarts: Mapping[str, int],
) -> AgentEnd | None:
    # ``None``: it could not be started.
    beats_fd, beat_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    guardian = os.getpid()
    # A signal right after the fork must not run the guardian's handlers in the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        pid = _fork()
    except OSError as error:  # as by a fork bomb; the next start may succeed
        _log.error("cannot fork for the agent: %s", error.strerror)
        os.close(beats_fd)
        os.close(beat_fd)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return None
    if pid == 0:
        os.close(beats_fd)
        signals.reset_in_child()
        if oom_score_adj is not None:
            _OOM_SCORE_ADJ.write_text(str(oom_score_adj), encoding="ascii")
        _exit_child(lambda: _run_agent(agent, Heartbeat(beat_fd, restarts), lock, guardian))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.close(beat_fd)
    pidfd = os.pidfd_open(pid)
    try:
        lock.set_owners([guardian, pid])
        silence = Silence(pid, limits.heartbeat_s, limits.starved_s)
        stopped, killed = _watch(pidfd, beats_fd, signals, limits, lock, manager, silence)
        # Still running after _watch: killed, but hanging in the kernel.
        ended, status = os.waitpid(pid, os.WNOHANG)
    finally:
        os.close(pidfd)
        os.close(beats_fd)
        lock.set_owners([guardian])
    code = os.waitstatus_to_exitcode(status) if ended else -signal.SIGKILL
    return AgentEnd(code, stopped, killed)


def _watch(
    pidfd: int,
    beats_fd: int,
    signals: _Signals,
    limits: Limits,
    lock: Lock,
    manager: ServiceManager,
    silence: Silence,
) -> tuple[bool, bool]:
    # Return when the agent is dead, or will be without running again: whether it had been asked to
    # stop, and whether it was killed here.
    poll = select.poll()
    for fd in (pidfd, beats_fd, signals.read_fd):
        poll.register(fd, select.POLLIN)
    polled = time.monotonic()
    deadline = polled + limits.start_s
    started = stopped = killed = False
    while True:
        ready = {fd for fd, _ in poll.poll(1000 * min(_POLL_S, max(0.0, deadline - polled)))}
        now = time.monotonic()
        if pidfd in ready:
            return stopped, killed
        with contextlib.suppress(LockError):  # the agent finds the same, and reports it
            lock.renew()
        if beats_fd in ready:
            if not _drain(beats_fd):
                poll.unregister(beats_fd)  # closed: the agent is ending, its pidfd follows
            elif not stopped:
                deadline = silence.begin(now)
                manager.ready()
            started = True
        for number in signals.pop():
            if number == signal.SIGHUP:
                signal.pidfd_send_signal(pidfd, signal.SIGHUP)
            elif not stopped:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                stopped = True
                deadline = now + limits.stop_s
                manager.stopping()
        if now - polled > _SUSPENDED_S:
            deadline = max(deadline, now + limits.stop_s)
        if now >= deadline:
            if killed:
                _log.error("the agent was killed and hangs in the kernel: going on without it")
                return stopped, True
            more_s = silence.allow_s(now) if started and not stopped else 0.0
            if not more_s:
                _tell_limit(started, stopped)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                killed = True
            deadline = now + (more_s or limits.stop_s)
        # The agent is within its limit, or was killed: the guardian does its work.
        manager.alive(now)
        polled = now


def _tell_limit(started: bool, stopped: bool) -> None:
    # Say why the agent is killed now.
    if stopped and not started:
        # It compiles or waits for a CPU, and holds nothing yet.
        _log.info("the agent has not finished its start: ending it")
    elif stopped:
        _log.error("the agent does not stop: killing it")
    elif not started:
        _log.error("the agent takes too long to start: killing it")
    else:
        _log.error("the agent is silent: killing it")


def _run_agent(
    agent: Callable[[Heartbeat], int], heartbeat: Heartbeat, lock: Lock, guardian: int
) -> int:
    # The kernel sends SIGTERM when the guardian dies: the agent then restores the knobs itself.
    from controller.host.facts import die_with_parent  # here, so that the guardian stays small
    from controller.host.own_cgroup import raise_session, shorten_slice

    raise_session()
    shorten_slice()
    die_with_parent(signal.SIGTERM)
    if os.getppid() != guardian:
        return 1  # the guardian died before that call
    lock.set_owners([guardian, os.getpid()])
    os.register_at_fork(after_in_child=heartbeat.close)
    os.register_at_fork(after_in_child=lock.close)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return agent(heartbeat)


def _restore_in_child(restore: Callable[[], bool], limits: Limits, lock: Lock) -> bool:
    # Restore in a child, whose memory and crashes do not affect the guardian. The child holds the
    # lock until it ends, even if the guardian is killed.
    code: int | None = None
    for left in reversed(range(limits.restores)):
        try:
            pid = _fork()
        except OSError as error:
            _log.warning("cannot fork for the restore (%s): restoring in the guardian", error)
            return restore()
        if pid == 0:
            _exit_child(lambda: 0 if restore() else 1)
        code = _wait_or_kill(pid, limits.restore_s)
        if code is not None and code >= 0:
            break
        what = (
            f"took longer than {limits.restore_s:g}s" if code is None else f"died of signal {-code}"
        )
        then = "trying again in another process" if left else "giving up"
        _log.error("the restore %s: %s", what, then)
    if code != 0:
        command = release_command(lock.directory)
        _log.error("not all knobs could be restored: see above, then run '%s'", command)
    return code == 0


def _wait_or_kill(pid: int, seconds: float) -> int | None:
    # Return the exit code of a child (negative: signal), or None if it had to be killed. A child
    # that hangs in the kernel does not end, but never runs again either.
    pidfd = os.pidfd_open(pid)
    try:
        if _ends(pidfd, seconds):
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if select.select([pidfd], [], [], _KILLED_S)[0]:
            os.waitpid(pid, 0)
        return None
    finally:
        os.close(pidfd)


def _ends(pidfd: int, seconds: float) -> bool:
    # Whether the child ends in time, not counting a time in which it could not run either.
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    polled = time.monotonic()
    deadline = polled + seconds
    while not poller.poll(max(0.0, min(_POLL_S, deadline - polled)) * 1000):
        now = time.monotonic()
        if now - polled > _SUSPENDED_S:
            deadline = now + seconds
        elif now >= deadline:
            return False
        polled = now
    return True


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
            with contextlib.suppress(Exception):
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
