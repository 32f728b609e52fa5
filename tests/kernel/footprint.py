# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a running agent costs, guardian included, as the kernel counts it."""

import os
from pathlib import Path
from typing import NamedTuple

from controller.agent.self_budget import pss_bytes
from tests.kernel.agent import AgentRun

__all__ = ("Footprint", "footprint")


class Footprint(NamedTuple):
    """Sums over both processes: CPU seconds so far, and what they hold now."""

    cpu_s: float
    pss_bytes: int
    fds: int
    threads: int


def footprint(agent: AgentRun) -> Footprint:
    """Return the sums over the guardian and its child as of now."""
    parts = [_of(pid) for pid in agent.pids()]
    return Footprint(*(sum(column) for column in zip(*parts, strict=True)))


def _of(pid: int) -> Footprint:
    proc = Path(f"/proc/{pid}")
    # Behind the name, which may hold spaces: fields 14, 15 and 20.
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    memory = pss_bytes(pid)
    assert memory is not None
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Footprint(cpu_s, memory, len(os.listdir(proc / "fd")), int(fields[17]))
