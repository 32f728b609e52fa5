# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Why an agent process ended, as its guardian can tell."""

import signal
from typing import NamedTuple

from controller.host.oom import OomCounters

__all__ = ("RESTART_REASONS", "AgentEnd", "explain_end")

# Why an agent was started again: killed at the memory limit of its cgroup, killed for want of
# memory elsewhere (the host, a cgroup above), killed by the guardian for its silence, ended by
# another signal, or by itself.
RESTART_REASONS = ("memory-limit", "out-of-memory", "silent", "signal", "exit")


class AgentEnd(NamedTuple):
    """The end of an agent: its exit code (negative: signal), and what came before.

    ``stopped``: it had been asked to stop. ``killed``: its guardian killed it.
    """

    code: int
    stopped: bool
    killed: bool


def explain_end(
    end: AgentEnd, before: OomCounters | None, after: OomCounters | None
) -> tuple[str, str]:
    """Return why the agent ended: one of ``RESTART_REASONS``, and words that follow its name."""
    if end.code >= 0:
        return "exit", f"ended with {end.code}"
    if end.killed:
        return "silent", f"ended with {end.code}, killed by its guardian"
    ended = f"ended with {end.code} ({signal.strsignal(-end.code) or 'unknown signal'})"
    if end.code != -signal.SIGKILL or before is None or after is None:
        return "signal", ended
    if after.kills == before.kills:
        return "signal", f"{ended}, sent by another program: the kernel killed nothing for memory"
    if after.limit_bytes is not None and after.at_limit > before.at_limit:
        limit = f"the memory limit of {after.limit_bytes / 2**20:.0f} MiB"
        advice = "raise resources.limits.memory of the chart, or MemoryMax= of the unit"
        return "memory-limit", f"was ended by {limit} ({advice})"
    return "out-of-memory", "was ended by the kernel: the host or a parent cgroup lacks memory"
