# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Waits of one thread for blocked signals, readable files and a time, in one system call.

``select.poll`` rounds its timeout up to milliseconds, and Python has no signalfd(2).
"""

from collections.abc import Collection, Set
import ctypes
import errno
from itertools import zip_longest
import os
import select
import signal
import time

from controller.core.units import NS_PER_SEC

__all__ = ("READABLE", "SignalWait")

# What ``until`` returns for a file; it is no number of a signal.
READABLE = 0
_FILES = 2
_MASK_BYTES = 128  # sigset_t
# SFD_NONBLOCK is O_NONBLOCK, and SFD_CLOEXEC is O_CLOEXEC.
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("ns", ctypes.c_long))


class SignalWait:
    """Waits for one of *signals*, which the thread has blocked.

    ``readable`` are the files that the last ``until`` found readable, whatever it returned: some
    are readable only once.

    :raises OSError: the process has no descriptor left.
    """

    def __init__(self, signals: Set[int]) -> None:
        self._signals = signals
        self._libc = ctypes.CDLL(None, use_errno=True)
        mask = ctypes.create_string_buffer(_MASK_BYTES)
        for number in signals:
            self._libc.sigaddset(mask, number)
        signals_fd = _checked(self._libc.signalfd(-1, mask, _FLAGS))
        fds = signals_fd, *[-1] * _FILES
        self._files = (_PollFd * len(fds))(*(_PollFd(fd, select.POLLIN) for fd in fds))
        self.readable: Collection[int] = ()

    def until(self, due_ns: int, *fds: int | None) -> int | None:
        """Wait until *due_ns* (CLOCK_MONOTONIC); return the number of a signal that came before.

        ``READABLE``: one of *fds*, at most two, has become readable. ``None``: neither. A signal
        comes first, then the time.
        """
        for file, fd in zip_longest(self._files[1:], fds):
            file.fd = -1 if fd is None else fd
        while True:
            left_ns = max(0, due_ns - time.monotonic_ns())
            timeout = ctypes.byref(_Timespec(*divmod(left_ns, NS_PER_SEC)))
            # A signal to the process, as SIGCONT, breaks the call off; then no file is known.
            found = self._libc.ppoll(self._files, len(self._files), timeout, None)
            files = self._files[1:] if _checked(found, errno.EINTR) > 0 else ()
            self.readable = [file.fd for file in files if file.revents]
            taken = signal.sigtimedwait(self._signals, 0)
            if taken is not None and taken.si_signo in self._signals:
                return taken.si_signo
            if time.monotonic_ns() >= due_ns:
                return None
            if self.readable:
                return READABLE

    def close(self) -> None:
        """Close the descriptor of the signals."""
        os.close(self._files[0].fd)


def _checked(result: int, *ignored: int) -> int:
    error = ctypes.get_errno()
    if result < 0 and error not in ignored:
        raise OSError(error, os.strerror(error))
    return result
