# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A process that holds as much memory as it is told to."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time

from controller.host.facts import die_with_parent
from controller.host.python_child import python_child

__all__ = ("Grower",)


class Grower:
    """The process in *cgroups*, directories, with the oom_score_adj *score*.

    It ends with this process. ``held_mib`` is what it holds.
    """

    def __init__(self, score: int, cgroups: Iterable[Path]) -> None:
        self._process = subprocess.Popen(
            python_child("controller.demo.grower", str(score), *dict.fromkeys(map(str, cgroups))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
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


def _run(score: str, *cgroups: str) -> None:
    """Hold memory that cannot be reclaimed, as much as each line of the input says.

    A line has MiB, and the pause after each of them. Each MiB is answered with what is held.
    """
    die_with_parent(signal.SIGKILL)
    Path("/proc/self/oom_score_adj").write_text(score)
    for cgroup in cgroups:
        (Path(cgroup) / "cgroup.procs").write_text("0")
    held: list[bytes] = []
    for line in sys.stdin:
        most, pause_s = line.split()
        while len(held) < int(most):
            held.append(b"x" * (1 << 20))
            print(len(held), flush=True)
            time.sleep(float(pause_s))


if __name__ == "__main__":
    _run(*sys.argv[1:])
