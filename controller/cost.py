# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent itself costs: CPU time and memory of guardian and agent together."""

import os
from pathlib import Path
import re
import resource

from controller.report import AgentCost
from controller.units import NS_PER_SEC

__all__ = ("CostMeter", "pss_bytes")

_EVERY_NS = 10 * NS_PER_SEC
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


def pss_bytes(pid: int) -> int | None:
    """Return the proportional set size of process *pid*; ``None`` if it may not be read."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    match = _PSS.search(text)
    return None if match is None else int(match[1]) * 1024


class CostMeter:
    """Reads the cost every ten seconds: the kernel walks all page tables for the memory."""

    def __init__(self) -> None:
        self._due_ns = 0
        self._pss_bytes: int | None = None
        self._guardian = os.getppid()

    def read(self, now_ns: int) -> AgentCost:
        """Return CPU time since the start and memory at most ten seconds old."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _EVERY_NS
            parts = [pss_bytes(os.getpid())]
            if os.getppid() == self._guardian and _same_program(self._guardian):
                parts.append(pss_bytes(self._guardian))
            known = [part for part in parts if part is not None]
            self._pss_bytes = sum(known) if known else None
        own = resource.getrusage(resource.RUSAGE_SELF)
        helpers = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = own.ru_utime + own.ru_stime + helpers.ru_utime + helpers.ru_stime
        return AgentCost(cpu_s=cpu_s, pss_bytes=self._pss_bytes)


def _same_program(pid: int) -> bool:
    # Without a guardian the parent is a shell or init, which is none of our cost.
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return False
