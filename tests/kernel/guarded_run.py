# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of the program ``guarded``, whose agent squeezes one cgroup under the real guardian."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
import os
from pathlib import Path
import re
import signal
import subprocess
import sys

from tests.kernel.knobs import dump
from tests.support.cgroups import children_of
from tests.support.waiting import DEADLINE_S, eventually

__all__ = ("Guarded", "alive", "guarded")


class Guarded:
    """The running program; ``before`` are the knobs of its cgroup at the start.

    Each agent waits for ``squeezed`` before it writes a knob, so that the knobs stay as a restore
    left them until the test goes on.
    """

    def __init__(
        self,
        state_dir: Path,
        pod: Path,
        then: str,
        within: Sequence[str],
        limits: dict[str, float],
    ) -> None:
        self.pod, self.before = pod, dump(pod)
        given = [f"{name}={value}" for name, value in limits.items()]
        program = (sys.executable, "-m", "tests.kernel.guarded", str(state_dir), str(pod), then)
        self.process = subprocess.Popen(
            [*within, *program, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def squeezed(self) -> int:
        """Let an agent squeeze the cgroup, wait until it has, and return its pid."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):  # ended: the log below says why
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            if match := re.match(r"squeezed (\d+)", line):
                return int(match[1])
        raise AssertionError(self.process.communicate()[1])

    def wait_logged(self, text: str) -> None:
        """Wait until the program logs *text*; its agent must not be killed before."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            assert "killing it" not in line
            if text in line:
                return
        raise AssertionError(f"ended without {text!r} in its log")

    def wait_restored(self) -> None:
        """Wait until the knobs are as before."""
        eventually("restored", lambda: dump(self.pod) == self.before)

    def end(self) -> tuple[int, str]:
        """Wait for the end of the program and return its exit code and log."""
        log = self.process.communicate(timeout=DEADLINE_S)[1]
        return self.process.returncode, log

    def stop(self) -> tuple[int, str]:
        """Ask the program to end, and wait for it as ``end`` does."""
        self.process.terminate()
        return self.end()

    def kill_both(self, agent: int) -> None:
        """Kill the guardian and *agent*, which has no time to restore anything."""
        os.kill(agent, signal.SIGSTOP)  # it would restore when the guardian dies
        os.kill(self.pid, signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        self.process.wait()
        eventually("the death of the agent", lambda: not alive(agent))

    def kill_all(self) -> None:
        """Kill the guardian and all its children, among which may be a restore."""
        os.kill(self.pid, signal.SIGSTOP)
        # A fork that was under way ends before the signal has an effect.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        children = children_of(self.pid)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        self.end()
        eventually("the death of all", lambda: not any(map(alive, children)))


@contextmanager
def guarded(
    state_dir: Path, pod: Path, then: str = "live", within: Sequence[str] = (), **limits: float
) -> Iterator[Guarded]:
    """Run the program; afterwards none of its processes is left.

    :param then: what its agents do, see ``guarded.py``.
    :param within: a command that starts it.
    :param limits: the guardian's, in seconds; by default only a hang reaches them.
    """
    program = Guarded(state_dir, pod, then, within, limits)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.kill_all()
        program.process.communicate()


def alive(pid: int) -> bool:
    """Whether *pid* is a process that has not ended, though it may be stopped or frozen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
