# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who ran when, from the kernel's own trace of context switches."""

from collections.abc import Collection, Sequence
import os
from pathlib import Path
import re
import signal
import subprocess
import time
from typing import NamedTuple

__all__ = ("Run", "shared_s", "switches")

_TRACING = Path("/sys/kernel/tracing")
# "  <idle>-0   [001] d..2.  12.345678: sched_switch: prev_comm=.. prev_pid=0 .. next_pid=5 .."
_LINE = re.compile(
    r"\[(?P<cpu>\d+)\].*? (?P<time>\d+\.\d+): sched_switch: .*?prev_pid=(?P<prev>\d+) "
    r".*next_pid=(?P<next>\d+) "
)


class Run(NamedTuple):
    """A process on a CPU without a break."""

    cpu: int
    pid: int
    start_s: float
    end_s: float


def switches(seconds: float, pids: Collection[int]) -> list[Run]:
    """Trace *pids* for that long and return when they ran, cut at both ends."""
    if not (_TRACING / "trace").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(_TRACING)], check=True)
    event = _TRACING / "events/sched/sched_switch/enable"
    (_TRACING / "trace_clock").write_text("mono")
    (_TRACING / "trace").write_text("")
    either = (f"prev_pid == {pid} || next_pid == {pid}" for pid in pids)
    event.with_name("filter").write_text(" || ".join(either))
    (_TRACING / "tracing_on").write_text("1")
    event.write_text("1")
    start_s = time.monotonic()
    for pid in pids:  # or one that is never interrupted would not be in the trace
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
    time.sleep(seconds)
    (_TRACING / "tracing_on").write_text("0")
    end_s = time.monotonic()
    event.write_text("0")
    lines = (_TRACING / "trace").read_text().splitlines()
    lost = [line for line in lines if "LOST" in line]
    assert not lost, lost
    return [run for run in _runs(lines, start_s, end_s) if run.pid in pids]


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
        mine = [r for r in runs if r.cpu in core and r.pid in some]
        theirs = sorted(r for r in runs if r.cpu in core and r.pid in others)
        for a in mine:
            for b in theirs:
                if a.cpu != b.cpu:
                    total += max(0.0, min(a.end_s, b.end_s) - max(a.start_s, b.start_s))
    return total
