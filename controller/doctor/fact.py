# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One fact of the doctor's report, and helpers to find facts.

Facts come from files and from trial system calls without lasting effect: an event or map that is
closed at once. Standard library only, so that the doctor works before anything is installed.
"""

import ctypes
from dataclasses import dataclass
import errno
import os
from pathlib import Path
import platform

from controller.core.names import Knob
from controller.host.facts import libc

__all__ = ("Fact", "purpose", "read_text", "try_fd_syscall")

_SYSCALLS = {
    "x86_64": {"perf_event_open": 298, "bpf": 321},
    "aarch64": {"perf_event_open": 241, "bpf": 280},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One entry of the report. ``have`` is ``None`` if it cannot be determined.

    ``how``: how to get it. ``modes``: the modes that cannot work without it; mostly none.
    """

    name: str
    have: bool | None
    detail: str
    needed_for: str
    how: str = ""
    modes: tuple[str, ...] = ()


def purpose(*knobs: Knob) -> str:
    """Return what *knobs* are for, as in docs/REFERENCE.md."""
    return " ".join(f"{knob}: {knob.meaning}" for knob in knobs)


def read_text(path: str | Path) -> str:
    """Return the content of *path*, or an empty text if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def try_fd_syscall(name: str, *arguments: object) -> str:
    """Try a system call that returns a file descriptor, and close the descriptor.

    Return the name of the errno if the call failed, an empty text if it succeeded.
    """
    number = _SYSCALLS.get(platform.machine(), {}).get(name)
    if number is None:
        return f"unknown system call number on {platform.machine()}"
    # Integers as long: syscall(2) is variadic, and ctypes would pass 32 bits.
    fd = libc().syscall(
        ctypes.c_long(number),
        *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments),
    )
    if fd < 0:
        return errno.errorcode.get(ctypes.get_errno(), "failed")
    os.close(fd)
    return ""
