# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""BPF array maps as numpy arrays over shared memory.

Separate from ``libbpf`` because the loader's child needs that module, but not numpy, whose import
takes 0.1 s.
"""

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ("MappedArray",)


class MappedArray:
    """A BPF_F_MMAPABLE array map as a numpy view: reads and writes need no copy, no system call.

    :param fd: the map's descriptor; the mapping stays valid after it is closed. The memory is
        unmapped when the last array that uses it is freed.
    :param dtype: the layout of one value. Its size must be a multiple of 8 bytes, because the
        kernel pads values to that.
    :param entries: the number of values.
    :raises OSError: the map cannot be mapped (kernel before 5.5, or no BPF_F_MMAPABLE).
    """

    def __init__(self, fd: int, dtype: np.dtype[Any], entries: int) -> None:
        size = -(-dtype.itemsize * entries // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.values: NDArray[Any] = np.frombuffer(self._memory, dtype, entries)
