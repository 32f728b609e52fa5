# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A short-lived child that does one thing and tells what came of it.

Only a task that carries a cookie can hand it on, and the agent must never carry one: it would
be kept off the cores of the services that it watches. So a fork of it does that, and ends.
"""

from collections.abc import Callable
import ctypes
import os
import signal
import sys
import time
from typing import NoReturn
import warnings

__all__ = ("Helper",)

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_MAX_ANSWER_BYTES = 65536  # what a pipe takes without a reader
_LOOK_S = 0.001


class Helper:
    """A forked child that runs *job*; it dies with its parent.

    *job* returns its answer as text and must not log: a lock may be held for ever by a
    thread that was not forked.

    :raises OSError: no process could be made.
    """

    def __init__(self, job: Callable[[], str]) -> None:
        self._fd, answer_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                # The HTTP threads: they share nothing with the child that it uses.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid: int | None = os.fork()
        except OSError:
            os.close(self._fd)
            os.close(answer_fd)
            raise
        if self._pid == 0:
            _live(job, answer_fd, parent)
        os.close(answer_fd)

    def poll(self) -> str | None:
        """Return the answer once the child has ended, ``None`` before; empty if it failed."""
        if self._pid is None:
            return ""
        pid, _ = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            return None
        self._pid = None
        try:
            return os.read(self._fd, _MAX_ANSWER_BYTES).decode()
        except BlockingIOError:  # it never came so far
            return ""
        finally:
            os.close(self._fd)

    def wait(self, timeout_s: float) -> str:
        """Return the answer within *timeout_s*, or kill the child; empty if it failed."""
        deadline = time.monotonic() + timeout_s
        while (answer := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                return ""
            time.sleep(_LOOK_S)
        return answer

    def kill(self) -> None:
        """End the child now, whatever it does."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = None
            os.close(self._fd)


def _live(job: Callable[[], str], answer_fd: int, parent: int) -> NoReturn:
    # Never returns into the parent's stack, whatever happens.
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # otherwise it died before we asked
            os.write(answer_fd, job().encode()[:_MAX_ANSWER_BYTES])
            code = 0
    except BaseException:  # the process ends here, and says why
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
