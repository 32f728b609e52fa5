# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The handle of libbpf.so.1, and what is done through it: hash maps, run time of programs.

Called with ctypes, and not through bcc: libbpf takes 0.4 MB, while bcc maps all of LLVM into the
process. Every package of bcc depends on libbpf, so it is present.
"""

from collections.abc import Iterable
import ctypes
from functools import cache
import os
from pathlib import Path
import re
import struct
from typing import NamedTuple

__all__ = (
    "HashMap",
    "RunTime",
    "libbpf",
    "run_time",
)


@cache
def libbpf() -> ctypes.CDLL:
    """Return the library; ``ctypes.get_errno()`` gives the error of the last call through it.

    Arguments wider than an int must be wrapped in a ctypes type where no prototype is set.

    :raises OSError: the library is missing.
    """
    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    library.libbpf_set_print(None)  # what it would print is raised as an error
    library.btf__parse_raw.restype = ctypes.c_void_p
    library.btf__free.argtypes = (ctypes.c_void_p,)
    library.btf__find_by_name_kind.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32)
    library.btf__type_by_id.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.btf__type_by_id.restype = ctypes.c_void_p
    library.btf__name_by_offset.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.btf__name_by_offset.restype = ctypes.c_char_p
    return library


class HashMap:
    """A BPF hash map with keys of one u64 and values of two u32.

    :param fd: the map's descriptor; the caller keeps it open.
    :raises OSError: libbpf is missing, or the kernel refuses an update.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._libbpf = libbpf()

    def set(self, key: int, first: int, second: int) -> None:
        """Map *key* to the pair (*first*, *second*)."""
        value = struct.pack("=II", first, second)
        if self._libbpf.bpf_map_update_elem(self._fd, _key(key), value, ctypes.c_uint64(0)):
            error = ctypes.get_errno()
            raise OSError(error, f"BPF map update: {os.strerror(error)}")

    def delete(self, key: int) -> None:
        """Remove *key*; a missing key is no error."""
        self._libbpf.bpf_map_delete_elem(self._fd, _key(key))


def _key(key: int) -> bytes:
    return struct.pack("=Q", key)


_FIELD = re.compile(r"^(prog_id|run_time_ns|run_cnt):\s+(\d+)$", re.MULTILINE)


class RunTime(NamedTuple):
    """Number of runs of BPF programs and their total time in ns, since the programs were loaded.

    The kernel counts both only while kernel.bpf_stats_enabled is 1.
    """

    runs: int
    time_ns: int


def run_time(links: Iterable[int]) -> RunTime | None:
    """Return the sum over the programs of *links*, descriptors of BPF links.

    ``None`` if no run was counted: the kernel's statistics are off, or fdinfo does not name the
    programs of links (it does since Linux kernel commit f2e10bff16a0 (in v5.8)).
    """
    runs = time_ns = 0
    for link in links:
        program_id = _fdinfo(link).get("prog_id")
        if program_id is None:
            continue
        program = libbpf().bpf_prog_get_fd_by_id(ctypes.c_uint32(program_id))
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
