# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Processes with an oom_score_adj of their own, which fork and change it on command."""

from pathlib import Path
import subprocess
import sys

__all__ = ("ORIGINALS", "Scored", "score")

# Less than 0 takes CAP_SYS_RESOURCE (bit 24), which root of a container lacks.
_EFFECTIVE = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
ORIGINALS = (17, 400, -5 if int(_EFFECTIVE, 16) >> 24 & 1 else 3)

# A command is a line: "fork", answered with the pid, "name NAME", or the new value of the process
# itself, which it may set without CAP_SYS_RESOURCE.
_PROGRAM = """
import ctypes, os, signal, sys
from controller.host.capabilities import SYS_RESOURCE, without_capability
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: none outlives the test
def score(value):
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(value)
score(sys.argv[1])
open(sys.argv[2] + "/cgroup.procs", "w").write("0")
print(flush=True)
for line in sys.stdin:
    if line == "fork\\n":
        pid = os.fork()
        if not pid:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            signal.pause()
        print(pid, flush=True)
    elif line.startswith("name "):
        ctypes.CDLL(None).prctl(15, line[5:-1].encode())  # PR_SET_NAME
        print(flush=True)
    else:
        with without_capability(SYS_RESOURCE):
            score(line)
        print(flush=True)
"""


class Scored:
    """A process in *cgroup* whose oom_score_adj is *value*."""

    def __init__(self, value: int, cgroup: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(value), str(cgroup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    @property
    def value(self) -> int:
        """Its oom_score_adj."""
        return score(self.process.pid)

    def fork(self) -> int:
        """Let it make a child, and return that one's pid."""
        return int(self._ask("fork"))

    def rename(self, name: str) -> None:
        """Let it take another name."""
        self._ask(f"name {name}")

    def change(self, value: int) -> None:
        """Let it set its own oom_score_adj."""
        self._ask(str(value))

    def move(self, cgroup: Path) -> None:
        """Move it to another cgroup."""
        (cgroup / "cgroup.procs").write_text(str(self.process.pid))

    def end(self) -> None:
        """Kill it, and its children with it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _ask(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        assert answer, "it ended"
        return answer


def score(pid: int) -> int:
    """Return the oom_score_adj of a process."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
