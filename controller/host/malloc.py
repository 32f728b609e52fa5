# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of glibc's allocator, which otherwise keeps memory that Python has freed.

A C library without these functions (musl) is left as it is.
"""

import contextlib
import ctypes

from controller.host.facts import libc

__all__ = ("keep_heap_small", "return_freed_memory")

# malloc.h of glibc.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MMAP_THRESHOLD_BYTES = 128 << 10


def keep_heap_small() -> None:
    """Give all threads one heap, and large blocks a mapping each; call this before any thread.

    Threads that allocate wait for the interpreter lock anyway. A fixed threshold (glibc's initial
    one) is not raised when a large block is freed, so such blocks do not fragment the heap.
    """
    with contextlib.suppress(AttributeError):
        libc().mallopt(_M_ARENA_MAX, 1)
        libc().mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def return_freed_memory() -> None:
    """Return the unused pages of the heap to the kernel: mallopt(3), malloc_trim(3)."""
    with contextlib.suppress(AttributeError):
        libc().malloc_trim(ctypes.c_size_t(0))
