# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""BPF maps without bcc: mmapped arrays as numpy views, hash updates through libbpf.

What attached BPF programs cost, as the kernel counts it while kernel.bpf_stats_enabled is 1.
"""

from collections.abc import Iterable
import ctypes
import mmap
import os
from pathlib import Path
import re
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = (
    "HashMap",
    "MappedArray",
    "RunTime",
    "run_time",
)


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


_FIELD = re.compile(r"^(prog_id|run_time_ns|run_cnt):\s+(\d+)$", re.MULTILINE)


class RunTime(NamedTuple):
    """How often programs ran and for how many ns, since they were loaded."""

    runs: int
    time_ns: int


def run_time(links: Iterable[int]) -> RunTime | None:
    """Return the sum over the programs of *links*, descriptors of BPF links.

    ``None`` if the kernel counted no run: its statistics are off, or it tells nothing (links
    show their program in fdinfo since Linux kernel commit f2e10bff16a0 (in v5.8)).
    """
    runs = time_ns = 0
    for link in links:
        program_id = _fdinfo(link).get("prog_id")
        if program_id is None:
            continue
        program = ctypes.CDLL("libbpf.so.1").bpf_prog_get_fd_by_id(ctypes.c_uint32(program_id))
        if program < 0:
            continue
        try:
            found = _fdinfo(program)
        finally:
            os.close(program)
        runs += found.get("run_cnt", 0)
        time_ns += found.get("run_time_ns", 0)
    return RunTime(runs, time_ns) if runs else None


def _fdinfo(fd: int) -> dict[str, int]:
    text = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii")
    return {name: int(number) for name, number in _FIELD.findall(text)}
