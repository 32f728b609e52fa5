# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Small loads in cgroups of a test, synchronised at a gate before and after their work.

A load joins its cgroup, waits for ``go``, works until it is stopped or its time is over, and then
waits for the next ``go``. The kernel's counters for the load can therefore be read exactly before
and after its work. Where the speed of the machine must not change a verdict, the load works until
the test has seen what it waits for.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import functools
import math
from pathlib import Path
import signal
import subprocess
import sys
from typing import NamedTuple, TypeVar

from tests.support.waiting import eventually

__all__ = ("Load", "Running", "Schedstat", "is_blocked", "loads", "schedstat")

_Found = TypeVar("_Found")

_WORKER = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no load outlives the test
cgroup, kind, seconds, cpu = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
cgroups = [cgroup, *sys.argv[5:]]
wanted = True

def join(path):
    with open(path + "/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))

def stop(*_):
    global wanted
    wanted = False

def spin(until):
    while wanted and time.monotonic() < until:
        pass

def work(end):
    if kind == "hog":
        spin(end)
    elif kind == "bursts":       # a service: 1 ms of work, 3 ms of sleep
        while wanted and time.monotonic() < end:
            spin(time.monotonic() + 0.001)
            time.sleep(0.003)
    elif kind == "light":        # a job that hardly runs: 1 ms of work, 20 ms of sleep
        while wanted and time.monotonic() < end:
            spin(time.monotonic() + 0.001)
            time.sleep(0.02)
    elif kind == "roam":         # changes its CPU while it works
        cpus = sorted(os.sched_getaffinity(0))
        step = 0
        while wanted and time.monotonic() < end:
            step += 1
            os.sched_setaffinity(0, {cpus[step % len(cpus)]})
            spin(time.monotonic() + 0.02)
    elif kind == "late timers":  # a hog that sets timers to a time that passed 900 ms ago
        words = ctypes.c_long * 4
        timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
        while wanted and time.monotonic() < end:
            past, rest = divmod(time.monotonic_ns() - 900_000_000, 10**9)
            assert libc.timerfd_settime(timer, 1, words(0, 0, past, rest), None) == 0
    elif kind == "moves":        # a hog that goes from cgroup to cgroup
        step = 0
        while wanted and time.monotonic() < end:
            step += 1
            join(cgroups[step % len(cgroups)])
            spin(time.monotonic() + 0.001)
        join(cgroup)
    elif kind == "idle":
        while wanted and time.monotonic() < end:
            time.sleep(0.05)

signal.signal(signal.SIGUSR1, stop)
if cpu >= 0:
    os.sched_setaffinity(0, {cpu})
join(cgroup)
print("ready", flush=True)
while sys.stdin.readline():
    work(time.monotonic() + seconds)
    wanted = True
    print("done", flush=True)
"""


class Load(NamedTuple):
    """Work of *kind* in *cgroup*, on the CPU *cpu* or, with -1, on all.

    A load that moves takes turns in *cgroup* and *others*.
    """

    cgroup: Path
    kind: str
    cpu: int = -1
    others: tuple[Path, ...] = ()


class Schedstat(NamedTuple):
    """/proc/PID/schedstat; ``runs`` is the number of switches to the task."""

    oncpu_ns: int
    wait_ns: int
    runs: int

    def since(self, before: "Schedstat") -> "Schedstat":
        """Return what was counted since *before*."""
        return Schedstat(*(now - then for now, then in zip(self, before, strict=True)))


def schedstat(pid: int) -> Schedstat:
    """Return the kernel's counters for *pid*."""
    return Schedstat(*map(int, Path(f"/proc/{pid}/schedstat").read_text().split()))


def is_blocked(pid: int) -> bool:
    """Return whether *pid* is blocked in a system call.

    The kernel answers when the task is off the CPU (``wait_task_inactive`` in kernel/sched/core.c),
    so its counters do not change any more.
    """
    number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    return number not in ("running", "-1")


class Running:
    """Loads waiting at their gate.

    :param seconds: how long they work; ``None``: until they are stopped.
    """

    def __init__(self, wanted: Iterable[Load], seconds: float | None) -> None:
        self.loads = tuple(wanted)
        time_s = str(math.inf if seconds is None else seconds)
        self._processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-S", "-c", _WORKER),
                    *(str(load.cgroup), load.kind, time_s, str(load.cpu)),
                    *map(str, load.others),
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

    def work_until(self, what: str, check: Callable[[], _Found]) -> _Found:
        """Start all loads, stop them when the result of *check* is true, and return that.

        *what* names the result.
        """
        self.start()
        result = eventually(what, check)
        self.stop()
        return result

    def start(self) -> None:
        """Start all loads and return at once."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def stop(self) -> None:
        """Stop loads that work without an end, and wait until all are blocked again."""
        for process in self._processes:
            process.send_signal(signal.SIGUSR1)
        self.done()

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
        return Schedstat(*map(sum, zip(*parts, strict=True)))

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
        # A process writes the word before it blocks, and on a busy CPU it blocks later.
        for process in self._processes:
            eventually("a load blocks", functools.partial(is_blocked, process.pid))


@contextlib.contextmanager
def loads(wanted: Iterable[Load], seconds: float | None = None) -> Iterator[Running]:
    """Start the processes of *wanted*, which wait at the gate; kill them at the end.

    :param seconds: how long they work; ``None``: until they are stopped.
    """
    running = Running(wanted, seconds)
    try:
        yield running
    finally:
        running.end()
