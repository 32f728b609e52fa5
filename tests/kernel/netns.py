# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Entering another network namespace for a block of code."""

from collections.abc import Iterator
import contextlib
import ctypes
import os
from pathlib import Path

__all__ = ("entered",)

_CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Move this thread into a network namespace, and back at the end.

    :param namespace: its name in ``/run/netns``, or its path.
    """
    path = Path("/run/netns", namespace)
    with open("/proc/thread-self/ns/net") as before, path.open() as there:
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
