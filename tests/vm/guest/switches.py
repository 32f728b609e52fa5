# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Run times of processes, from the kernel's trace of context switches."""

from collections.abc import Collection, Sequence
import os
from pathlib import Path
import re
import signal
import subprocess
import time
from typing import NamedTuple

__all__ = ("Run", "SwitchTrace", "shared_s")

_TRACING = Path("/sys/kernel/tracing")
# "  <idle>-0   [001] d..2.  12.345678: sched_switch: prev_comm=.. prev_pid=0 .. next_pid=5 .."
_LINE = re.compile(
    r"\[(?P<cpu>\d+)\].*? (?P<time>\d+\.\d+): sched_switch: .*?prev_pid=(?P<prev>\d+) "
    r".*next_pid=(?P<next>\d+) "
)


class Run(NamedTuple):
    """An uninterrupted run of a process on a CPU."""

    cpu: int
    pid: int
    start_s: float
    end_s: float


class SwitchTrace:
    """Trace of *pids*. Enabling and disabling the event takes seconds, so it is done once."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        if not (_TRACING / "trace").exists():
            subprocess.run(["mount", "-t", "tracefs", "tracefs", str(_TRACING)], check=True)
        event = _TRACING / "events/sched/sched_switch"
        (_TRACING / "tracing_on").write_text("0")
        (_TRACING / "trace_clock").write_text("mono")
        either = (f"prev_pid == {pid} || next_pid == {pid}" for pid in pids)
        (event / "filter").write_text(" || ".join(either))
        self._enable = event / "enable"
        self._enable.write_text("1")

    def record(self, seconds: float) -> list[Run]:
        """Return the runs of the processes in the next *seconds*, cut at both ends."""
        (_TRACING / "trace").write_text("")
        (_TRACING / "tracing_on").write_text("1")
        start_s = time.monotonic()
        for pid in self._pids:  # so that a process without a switch is in the trace
            if _is_running(pid):
                os.kill(pid, signal.SIGSTOP)
                os.kill(pid, signal.SIGCONT)
        time.sleep(seconds)
        (_TRACING / "tracing_on").write_text("0")
        end_s = time.monotonic()
        lines = (_TRACING / "trace").read_text().splitlines()
        lost = [line for line in lines if "LOST" in line]
        assert not lost, lost
        return [run for run in _runs(lines, start_s, end_s) if run.pid in self._pids]

    def close(self) -> None:
        """Disable the event."""
        self._enable.write_text("0")


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"


def _runs(lines: list[str], start_s: float, end_s: float) -> list[Run]:
    runs: list[Run] = []
    since: dict[int, float] = {}
    now: dict[int, int] = {}
    for line in lines:
        match = _LINE.search(line)
        if match is None:
            continue
        cpu, at_s = int(match["cpu"]), float(match["time"])
        runs.append(Run(cpu, int(match["prev"]), since.get(cpu, start_s), at_s))
        since[cpu], now[cpu] = at_s, int(match["next"])
    runs += [Run(cpu, pid, since[cpu], end_s) for cpu, pid in now.items()]
    return runs


def shared_s(
    runs: list[Run], cores: Sequence[Sequence[int]], some: Collection[int], others: Collection[int]
) -> float:
    """Return the time during which *some* ran on one thread of a core and *others* on another."""
    total = 0.0
    for core in cores:
        for one in core:
            for other in core:
                if one != other:
                    mine = [r for r in runs if r.cpu == one and r.pid in some]
                    theirs = [r for r in runs if r.cpu == other and r.pid in others]
                    total += _overlap_s(mine, theirs)
    return total


def _overlap_s(mine: list[Run], theirs: list[Run]) -> float:
    # Each list has the runs of one CPU, so they do not overlap and are sorted by time.
    total = 0.0
    first = second = 0
    while first < len(mine) and second < len(theirs):
        a, b = mine[first], theirs[second]
        total += max(0.0, min(a.end_s, b.end_s) - max(a.start_s, b.start_s))
        if a.end_s < b.end_s:
            first += 1
        else:
            second += 1
    return total
