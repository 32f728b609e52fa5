# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Resource use of a running agent, guardian included, as counted by the kernel."""

import os
from pathlib import Path
from typing import NamedTuple

from controller.agent.self_budget import pss_bytes
from tests.kernel.agent import AgentRun

__all__ = ("Footprint", "footprint")


class Footprint(NamedTuple):
    """Sums over both processes: CPU seconds so far; memory, descriptors and threads now."""

    cpu_s: float
    pss_bytes: int
    fds: int
    threads: int


def footprint(agent: AgentRun) -> Footprint:
    """Return the sums over the guardian and the agent."""
    parts = [_of(pid) for pid in agent.pids()]
    return Footprint(*(sum(column) for column in zip(*parts, strict=True)))


def _of(pid: int) -> Footprint:
    proc = Path(f"/proc/{pid}")
    # proc_pid_stat(5): fields 14, 15 and 20, counted after the name, which may hold spaces.
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    memory = pss_bytes(pid)
    assert memory is not None
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Footprint(cpu_s, memory, len(os.listdir(proc / "fd")), int(fields[17]))
