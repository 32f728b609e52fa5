# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""prctl(PR_SCHED_CORE): reading, creating and passing on core-scheduling cookies of single tasks.

Tasks with equal cookies may run on the threads of a core at the same time, other tasks may not
(Documentation/admin-guide/hw-vuln/core-scheduling.rst). User space sees a cookie as a number that
the kernel derives from its address; numbers can be compared as long as a task carries the cookie.
A task can create a cookie for itself, give its own cookie to another task, or take that of another
task. The absence of a cookie is 0 and is passed on in the same way.
"""

import ctypes
import errno
import os

__all__ = ("cookie_of", "create", "give_to", "take_from", "unsupported")

_PR_SCHED_CORE = 62  # include/uapi/linux/prctl.h
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = 0, 1, 2, 3
_ONE_TASK = 0  # PIDTYPE_PID: this thread only

# A handle of its own instead of host.facts.libc(): the prototype must not apply to other calls of
# prctl, which have other arguments.
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p)


def unsupported() -> str | None:
    """Return why this host has no core scheduling; ``None`` if it has. Takes 1 us."""
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
    :raises OSError: there is no core scheduling, or the task may not be accessed (EPERM).
    """
    cookie = ctypes.c_uint64()
    _call(_GET, tid, ctypes.addressof(cookie))
    return cookie.value


def create() -> int:
    """Create a cookie for the caller and return it; errors as ``cookie_of``."""
    _call(_CREATE, 0)
    return cookie_of(0)


def give_to(tid: int) -> None:
    """Give the caller's cookie, or its absence, to a task; errors as ``cookie_of``."""
    _call(_SHARE_TO, tid)


def take_from(tid: int) -> int:
    """Take the cookie of a task, or its absence, and return it; errors as ``cookie_of``."""
    _call(_SHARE_FROM, tid)
    return cookie_of(0)


def _call(command: int, tid: int, address: int | None = None) -> None:
    if _prctl(_PR_SCHED_CORE, command, tid, _ONE_TASK, address) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
