# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A process that holds as much memory as it is told to."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
import subprocess
import sys
import threading

__all__ = ("Grower",)

# The memory cannot be reclaimed. Each line of its input is how many MiB, and the pause after each;
# it answers with what it holds.
_PROGRAM = """
import ctypes, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
score, *cgroups = sys.argv[1:]
open("/proc/self/oom_score_adj", "w").write(score)
for cgroup in cgroups:
    open(cgroup + "/cgroup.procs", "w").write("0")
held = []
for line in sys.stdin:
    most, pause_s = line.split()
    while len(held) < int(most):
        held.append(b"x" * (1 << 20))
        print(len(held), flush=True)
        time.sleep(float(pause_s))
"""


class Grower:
    """The process in *cgroups*, directories, with the oom_score_adj *score*.

    It ends with this process. ``held_mib`` is what it holds.
    """

    def __init__(self, score: int, cgroups: Iterable[Path]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _PROGRAM, str(score), *dict.fromkeys(map(str, cgroups))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
        )
        self.held_mib = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.held_mib = int(line)

    def grow(self, to_mib: int, pause_s: float) -> None:
        """Let it grow to *to_mib*, with a pause after each MiB."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # killed
            self._process.stdin.write(f"{to_mib} {pause_s}\n")
            self._process.stdin.flush()

    @property
    def code(self) -> int | None:
        """The exit code; ``None``: it lives."""
        return self._process.poll()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
