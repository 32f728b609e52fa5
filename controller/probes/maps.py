# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""BPF maps without bcc: mmapped arrays as numpy views, hash updates through libbpf."""

import ctypes
import mmap
import os
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ("HashMap", "MappedArray")


class MappedArray:
    """A BPF_F_MMAPABLE array map, seen through numpy without a copy or a system call.

    :param fd: the map's descriptor; the mapping stays valid when it is closed.
    :param dtype: the layout of one value, a multiple of 8 bytes long as the kernel lays it out.
    :param entries: the number of values.
    :raises OSError: the map cannot be mapped (kernel before 5.5 or not made for it).
    """

    def __init__(self, fd: int, dtype: np.dtype[Any], entries: int) -> None:
        size = -(-dtype.itemsize * entries // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.values: NDArray[Any] = np.frombuffer(self._memory, dtype, entries)

    def close(self) -> None:
        """Give the view up; the memory is unmapped with the last array that uses it."""
        self.values = np.empty(0)


class HashMap:
    """A BPF hash map with u64 keys and values of two u32, written through libbpf.so.1.

    libbpf is a dependency of every bcc package and costs 0.4 MB, LLVM stays out.

    :raises OSError: libbpf cannot be loaded, or the kernel refuses an update.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)

    def set(self, key: int, first: int, second: int) -> None:
        """Map *key* to the pair (*first*, *second*)."""
        value = struct.pack("=II", first, second)
        if self._libbpf.bpf_map_update_elem(self._fd, _key(key), value, ctypes.c_uint64(0)):
            error = ctypes.get_errno()
            raise OSError(error, f"BPF map update: {os.strerror(error)}")

    def delete(self, key: int) -> None:
        """Remove *key*; harmless when it is not there."""
        self._libbpf.bpf_map_delete_elem(self._fd, _key(key))


def _key(key: int) -> bytes:
    return struct.pack("=Q", key)
