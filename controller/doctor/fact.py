# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One fact about the host, and the few ways in which facts are found.

Files are read and system calls are tried that change nothing (an event or a map that is closed
at once). Only the standard library is used, so that this runs where nothing is installed yet.
"""

import ctypes
from dataclasses import dataclass
import errno
import os
from pathlib import Path
import platform

__all__ = ("Fact", "read_text", "try_fd_syscall")

_SYSCALLS = {
    "x86_64": {"perf_event_open": 298, "bpf": 321},
    "aarch64": {"perf_event_open": 241, "bpf": 280},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of the report. ``have`` is ``None`` when it cannot be told from here.

    ``modes`` are the modes that cannot work without it; most facts are needed by none.
    """

    name: str
    have: bool | None
    detail: str
    needed_for: str
    how: str = ""
    modes: tuple[str, ...] = ()


def read_text(path: str | Path) -> str:
    """Return the content of *path*, or nothing where it does not exist or is not for us."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def try_fd_syscall(name: str, *arguments: object) -> str:
    """Try a system call that returns a descriptor, and close that.

    Return why it failed, as the name of the errno, or an empty text when it worked.
    """
    number = _SYSCALLS.get(platform.machine(), {}).get(name)
    if number is None:
        return f"not known how to ask on {platform.machine()}"
    libc = ctypes.CDLL(None, use_errno=True)
    # Integers as long: syscall(2) is variadic, and ctypes would pass 32 bits.
    fd = libc.syscall(
        ctypes.c_long(number),
        *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments),
    )
    if fd < 0:
        return errno.errorcode.get(ctypes.get_errno(), "failed")
    os.close(fd)
    return ""
