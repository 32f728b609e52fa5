# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Entering another network namespace for a block of code."""

from collections.abc import Iterator
import contextlib
import ctypes
import os

__all__ = ("entered",)

_CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Move this thread into the network namespace of that name, and back at the end."""
    with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{namespace}") as there:
        _setns(there.fileno())
        try:
            yield
        finally:
            _setns(before.fileno())


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
