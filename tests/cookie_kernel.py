# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The system call PR_SCHED_CORE, played for real processes on a kernel that has none.

Cookies are kept by thread id in memory that forked helpers share. What is not played: children
do not inherit, and nothing is scheduled.
"""

from collections.abc import Callable
import ctypes
import errno
import mmap
from pathlib import Path
import threading

_GET, _CREATE, _SHARE_TO, _SHARE_FROM = 0, 1, 2, 3
_MAX_TID = 1 << 22


class CookieKernel:
    """Takes the place of prctl(2); ``cookies[tid]`` may be read and set at will."""

    def __init__(self) -> None:
        memory = mmap.mmap(-1, 8 * _MAX_TID)
        self.cookies = memoryview(memory).cast("Q")
        self.errors: dict[int, int] = {}  # errno by task, for what is not allowed
        self.on_giving: Callable[[int], None] = lambda _task: None  # called before a cookie moves

    def prctl(self, option: int, command: int, tid: int, scope: int, address: int | None) -> int:
        """Do what the kernel does (kernel/sched/core_sched.c, sched_core_share_pid)."""
        assert (option, scope) == (62, 0)
        me = threading.get_native_id()
        task = tid or me
        if not Path(f"/proc/{task}").exists():
            return self._fail(errno.ESRCH)
        if command == _SHARE_TO:
            self.on_giving(task)
        if task in self.errors:
            return self._fail(self.errors[task])
        if command == _GET:
            assert address is not None
            ctypes.c_uint64.from_address(address).value = self.cookies[task]
        elif command == _CREATE:
            self.cookies[0] += 1  # no task has the id 0: the counter
            self.cookies[me] = 0xABC000 + self.cookies[0]
        elif command == _SHARE_TO:
            self.cookies[task] = self.cookies[me]
        elif command == _SHARE_FROM:
            self.cookies[me] = self.cookies[task]
        else:
            return self._fail(errno.EINVAL)
        return 0

    def _fail(self, code: int) -> int:
        ctypes.set_errno(code)
        return -1
