# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Capabilities of the calling thread (capabilities(7))."""

from collections.abc import Iterator
import contextlib
import ctypes

from controller.host.facts import libc

__all__ = ("SYS_RESOURCE", "without_capability")

SYS_RESOURCE = 24  # include/uapi/linux/capability.h
_VERSION_3 = 0x2008_0522


@contextlib.contextmanager
def without_capability(number: int) -> Iterator[None]:
    """Work without the capability *number*, below 32, of this thread, where it has it."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    # Effective, permitted and inheritable ones, then those from 32 on.
    data = (ctypes.c_uint32 * 6)()
    known = libc().capget(header, data) == 0
    before = data[0]
    data[0] = before & ~(1 << number)
    changed = known and data[0] != before and libc().capset(header, data) == 0
    try:
        yield
    finally:
        if changed:
            data[0] = before
            libc().capset(header, data)
