# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Emulation of prctl(PR_SCHED_CORE) for real processes, on kernels without core scheduling.

Cookies are stored by thread id in memory that forked helpers share. Not emulated: inheritance by
children, and scheduling.
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
    """Replaces prctl(2); tests may read and set ``cookies[tid]``."""

    def __init__(self) -> None:
        memory = mmap.mmap(-1, 8 * _MAX_TID)
        self.cookies = memoryview(memory).cast("Q")
        self.errors: dict[int, int] = {}  # by task, the errno of every access
        self.on_giving: Callable[[int], None] = lambda _task: (
            None
        )  # called before a task gets a cookie

    def prctl(self, option: int, command: int, tid: int, scope: int, address: int | None) -> int:
        """Emulate sched_core_share_pid (kernel/sched/core_sched.c)."""
        assert (option, scope) == (62, 0)
        caller = threading.get_native_id()
        task = tid or caller
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
            self.cookies[0] += 1  # index 0 belongs to no task and is the counter
            self.cookies[caller] = 0xABC000 + self.cookies[0]
        elif command == _SHARE_TO:
            self.cookies[task] = self.cookies[caller]
        elif command == _SHARE_FROM:
            self.cookies[caller] = self.cookies[task]
        else:
            return self._fail(errno.EINVAL)
        return 0

    def _fail(self, code: int) -> int:
        ctypes.set_errno(code)
        return -1
