# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What attached BPF programs cost, as the kernel counts it while kernel.bpf_stats_enabled is 1."""

from collections.abc import Iterable
import ctypes
import os
from pathlib import Path
import re
from typing import NamedTuple

__all__ = ("RunTime", "run_time")

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
