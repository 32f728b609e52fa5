# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Small loads in cgroups of a test, synchronised at a gate before and after their work.

A load joins its cgroup, waits for ``go``, works for its time and then blocks until it is killed.
The kernel's counters for the load can therefore be read exactly before and after its work.
"""

from collections.abc import Iterable, Iterator
import contextlib
from pathlib import Path
import subprocess
import sys
import time
from typing import NamedTuple

__all__ = ("Load", "Running", "Schedstat", "loads", "schedstat")

_WORKER = """
import os, sys, time
cgroup, kind, seconds, cpu = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
if cpu >= 0:
    os.sched_setaffinity(0, {cpu})
with open(cgroup + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + seconds

def spin(duration):
    until = time.monotonic() + duration
    while time.monotonic() < until:
        pass

if kind == "hog":
    spin(seconds)
elif kind == "bursts":       # a service: 1 ms of work, 3 ms of sleep
    while time.monotonic() < end:
        spin(0.001)
        time.sleep(0.003)
elif kind == "roam":         # changes its CPU while it works
    cpus = sorted(os.sched_getaffinity(0))
    step = 0
    while time.monotonic() < end:
        step += 1
        os.sched_setaffinity(0, {cpus[step % len(cpus)]})
        spin(0.02)
elif kind == "late timers":  # a hog that sets timers to a time that has passed
    import ctypes
    libc, words = ctypes.CDLL(None), ctypes.c_long * 4
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
    while time.monotonic() < end:
        seconds, rest = divmod(time.monotonic_ns() - 300_000_000, 10**9)
        assert libc.timerfd_settime(timer, 1, words(0, 0, seconds, rest), None) == 0
elif kind == "idle":
    while time.monotonic() < end:
        time.sleep(0.05)
print("done", flush=True)
sys.stdin.readline()
"""


class Load(NamedTuple):
    """Work of *kind* in *cgroup*, on the CPU *cpu* or, with -1, on all."""

    cgroup: Path
    kind: str
    cpu: int = -1


class Schedstat(NamedTuple):
    """Fields 1 and 2 of /proc/PID/schedstat, ns."""

    oncpu_ns: int
    wait_ns: int


def schedstat(pid: int) -> Schedstat:
    """Return the kernel's counters for *pid*."""
    oncpu, wait, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return Schedstat(int(oncpu), int(wait))


class Running:
    """Loads waiting at their gate; ``work`` starts all of them and waits until they are done."""

    def __init__(self, wanted: Iterable[Load], seconds: float) -> None:
        self.loads = tuple(wanted)
        self._processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-S", "-c", _WORKER),
                    *(str(load.cgroup), load.kind, str(seconds), str(load.cpu)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for load in self.loads
        ]
        self._expect("ready")

    def work(self) -> None:
        """Start all loads and return when all are done and blocked again."""
        self.start()
        self.done()

    def start(self) -> None:
        """Start all loads and return at once."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def done(self) -> None:
        """Wait until all loads are done and blocked again."""
        self._expect("done")

    def schedstat(self, cgroup: Path) -> Schedstat:
        """Return the sums over the loads in *cgroup* or below it."""
        parts = [
            schedstat(process.pid)
            for process, load in zip(self._processes, self.loads, strict=True)
            if load.cgroup == cgroup or cgroup in load.cgroup.parents
        ]
        return Schedstat(sum(p.oncpu_ns for p in parts), sum(p.wait_ns for p in parts))

    def end(self) -> None:
        """Kill all loads."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()

    def _expect(self, word: str) -> None:
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == word
        # A process writes the word before it blocks, and on a busy CPU it blocks later. Wait until
        # the counters do not change any more.
        counted = None
        while counted != (counted := [schedstat(process.pid) for process in self._processes]):
            time.sleep(0.05)


@contextlib.contextmanager
def loads(wanted: Iterable[Load], seconds: float) -> Iterator[Running]:
    """Start the processes of *wanted*, which wait at the gate; kill them at the end."""
    running = Running(wanted, seconds)
    try:
        yield running
    finally:
        running.end()
