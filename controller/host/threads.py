# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the threads of a process do: run, wait for a CPU, or sleep.

The guardian reads it, so this module imports the standard library only.

Time in run queues is the second number of ``/proc/PID/task/TID/schedstat`` (proc_pid_schedstat in
fs/proc/base.c). The kernel adds a wait when it ends, so a thread that waits all the time is known
by its state: it is runnable, and used no CPU time.
"""

from collections.abc import Mapping
import contextlib
from pathlib import Path
import time
from typing import NamedTuple

__all__ = ("Threads", "read_threads")

_NS = 1_000_000_000


class _Thread(NamedTuple):
    # Its name, its state as in proc_pid_stat(5), the kernel function in which it sleeps, its CPU
    # time and its time in run queues.
    name: str
    state: str
    sleeps_in: str
    cpu_ns: int
    queued_ns: int

    def waited_ns(self, before: "_Thread", elapsed_ns: int) -> int:
        if "R" == self.state == before.state and self.cpu_ns == before.cpu_ns:
            return elapsed_ns
        return self.queued_ns - before.queued_ns


class Threads(NamedTuple):
    """The threads of a process by id, at ``read_ns`` (CLOCK_MONOTONIC)."""

    read_ns: int
    by_id: Mapping[int, _Thread]

    def waited_ratio(self, before: "Threads") -> float:
        """Return how many of the threads waited for a CPU since *before*, on average over time."""
        elapsed_ns = max(1, self.read_ns - before.read_ns)
        both = self.by_id.keys() & before.by_id.keys()
        waited = (self.by_id[tid].waited_ns(before.by_id[tid], elapsed_ns) for tid in both)
        return sum(waited) / elapsed_ns

    def __str__(self) -> str:
        """Return a line: name, state, place in the kernel and CPU time of each thread."""
        return ", ".join(
            f"{each.name} {each.state} {each.sleeps_in} {each.cpu_ns / _NS:.2f}s"
            for each in self.by_id.values()
        )


def read_threads(pid: int, proc: Path = Path("/proc")) -> Threads:
    """Read the threads of process *pid*. Threads that end meanwhile are left out; never raises."""
    found: dict[int, _Thread] = {}
    with contextlib.suppress(OSError):
        for task in (proc / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                found[int(task.name)] = _read(task)
    return Threads(time.monotonic_ns(), found)


def _read(task: Path) -> _Thread:
    name, _, rest = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    cpu_ns, queued_ns = (task / "schedstat").read_text(encoding="ascii").split()[:2]
    place = ""
    with contextlib.suppress(OSError):  # needs CAP_SYS_PTRACE in some kernels
        place = (task / "wchan").read_text(encoding="ascii")
    return _Thread(
        name.partition("(")[2], rest.split()[0], place or "-", int(cpu_ns), int(queued_ns)
    )
