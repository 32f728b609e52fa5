# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PR_SCHED_CORE: reading and passing on core-scheduling cookies, one task at a time.

Tasks with equal cookies may run on the two threads of a core at the same time, others may not
(Documentation/admin-guide/hw-vuln/core-scheduling.rst). A cookie has no name: what user space
gets to see of it is a number that the kernel makes of its address, good for comparing until
nobody carries it any more. A task can only make a cookie for itself, hand its own to another
task, or take another's; no cookie is 0 and is handed on like one.
"""

import ctypes
import errno
import os

__all__ = ("cookie_of", "create", "give_to", "take_from", "unsupported")

_PR_SCHED_CORE = 62  # include/uapi/linux/prctl.h
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = 0, 1, 2, 3
_ONE_TASK = 0  # PIDTYPE_PID: this thread only

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p)


def unsupported() -> str | None:
    """Return why this host has no core scheduling, or ``None`` if it has it. Costs 1 us."""
    try:
        cookie_of(0)
    except OSError as error:
        reasons = {
            errno.EINVAL: "this kernel is built without CONFIG_SCHED_CORE",
            errno.ENODEV: "no core of this machine runs two threads (no SMT)",
        }
        return reasons.get(error.errno or 0, f"PR_SCHED_CORE: {error.strerror}")
    return None


def cookie_of(tid: int) -> int:
    """Return the cookie of a task, 0 for none; *tid* 0 is the caller.

    :raises ProcessLookupError: there is no such task.
    :raises OSError: there is no core scheduling, or the task may not be looked at (EPERM).
    """
    cookie = ctypes.c_uint64()
    _call(_GET, tid, ctypes.addressof(cookie))
    return cookie.value


def create() -> int:
    """Give the caller a new cookie and return it; errors as ``cookie_of``."""
    _call(_CREATE, 0)
    return cookie_of(0)


def give_to(tid: int) -> None:
    """Give a task the caller's cookie, or none if the caller has none; errors as ``cookie_of``."""
    _call(_SHARE_TO, tid)


def take_from(tid: int) -> int:
    """Take a task's cookie and return it; errors as ``cookie_of``."""
    _call(_SHARE_FROM, tid)
    return cookie_of(0)


def _call(command: int, tid: int, address: int | None = None) -> None:
    if _prctl(_PR_SCHED_CORE, command, tid, _ONE_TASK, address) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
