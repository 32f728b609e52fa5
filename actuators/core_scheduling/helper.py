# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A short-lived child process that runs one job and returns its answer as text.

Only a task that carries a cookie can pass it on. The agent must not carry one, because it would be
kept off the cores of the services that it measures. A fork of the agent does it instead.
"""

from collections.abc import Callable
import os
import signal
import sys
import time
from typing import NoReturn
import warnings

from controller.host.facts import die_with_parent

__all__ = ("Helper",)

_MAX_ANSWER_BYTES = 65536  # default capacity of a pipe, pipe(7)
_POLL_S = 0.001


class Helper:
    """A forked child that runs *job*; it dies with its parent.

    *job* returns its answer as text. It must not log: the lock of a log handler may be held by
    a thread that does not exist in the child.

    :raises OSError: no process could be created.
    """

    def __init__(self, job: Callable[[], str]) -> None:
        self._fd, answer_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                # Python warns because of the HTTP threads; the child uses no state of theirs.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid: int | None = os.fork()
        except OSError:
            os.close(self._fd)
            os.close(answer_fd)
            raise
        if self._pid == 0:
            _run_child(job, answer_fd, parent)
        os.close(answer_fd)

    def poll(self) -> str | None:
        """Return the answer after the end of the child, ``None`` before; empty if it failed."""
        if self._pid is None:
            return ""
        pid, _ = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            return None
        self._pid = None
        try:
            return os.read(self._fd, _MAX_ANSWER_BYTES).decode()
        except BlockingIOError:  # the child ended without an answer
            return ""
        finally:
            os.close(self._fd)

    def wait(self, timeout_s: float) -> str:
        """Return the answer; empty if the child failed or did not end within *timeout_s*.

        A child that exceeds the time is killed.
        """
        deadline = time.monotonic() + timeout_s
        while (answer := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                return ""
            time.sleep(_POLL_S)
        return answer

    def kill(self) -> None:
        """Kill the child, if it has not ended."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = None
            os.close(self._fd)


def _run_child(job: Callable[[], str], answer_fd: int, parent: int) -> NoReturn:
    # Ends the process in every case, so that the child never returns into the parent's stack.
    code = 1
    try:
        die_with_parent()
        if os.getppid() == parent:  # otherwise the parent died before die_with_parent()
            os.write(answer_fd, job().encode()[:_MAX_ANSWER_BYTES])
            code = 0
    except BaseException:  # the process ends here, with a traceback on stderr
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
