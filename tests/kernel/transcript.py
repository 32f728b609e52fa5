# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shell commands of a document with the output that it shows, and a shell that executes them.

Outputs are compared by their shape: words have to be the same, numbers, times and bars have not.
"""

from collections.abc import Callable
import os
from pathlib import Path
import re
import select
import subprocess
import time
from typing import NamedTuple

from tests.support.waiting import DEADLINE_S

__all__ = ("ROOT", "Shell", "Step", "matches", "steps")

ROOT = Path(__file__).parents[2]
_OMITTED = "..."
# A number with its unit; not one in a name, such as p99 or batch-0.
_NUMBER = re.compile(r"(?<![\w/.-])\d[\w.:+%-]*(?: \d[\w.:+%-]*| CPU (?:seconds|minutes|hours))*")
# What depends on the other work of the machine: whether a quota is needed besides sched-idle, and
# what else hurts a service.
_QUOTA = re.compile(
    r" \| best-effort may use \S+|, \S+ of what hurts \S+|(?<= )no quota(?=,)"
    r"|, outside / \([^)]*\) \S+|, (?:host|its own tasks|outside \S+) \d+%"
)
_BAR = re.compile(r"\[[#!. ]+\]")
_END = "end of the command:"


class Step(NamedTuple):
    """A command, and the lines that the document shows after it; ``None``: it shows none."""

    command: str
    output: tuple[str, ...] | None


def steps(document: str) -> list[Step]:
    """Return the commands of the blocks ``sh`` and ``console`` of *document*, in their order."""
    found: list[Step] = []
    text = (ROOT / document).read_text()
    for kind, block in re.findall(r"^```(sh|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        lines = block.replace("\\\n", " ").splitlines()
        if kind == "sh":
            found += [Step(re.sub(r"\s+# .*", "", line), None) for line in lines]
            continue
        for line in lines:
            if line.startswith("$ "):
                found.append(Step(line[2:], ()))
            else:
                command, output = found[-1]
                found[-1] = Step(command, (*(output or ()), line))
    return found


def shape(line: str) -> str:
    """Return *line* without what differs between two runs."""
    line = line.replace("runq_delay_p99", "runq_p99")  # the worse one of the two
    known = _QUOTA.sub(lambda found: "0cpu" if found[0] == "no quota" else "", line)
    return " ".join(_NUMBER.sub("#", _BAR.sub("[]", known)).split())


def matches(shown: tuple[str, ...], output: str) -> bool:
    """Return whether *output* has the shape of the lines *shown*."""
    wanted = [_OMITTED if line == _OMITTED else shape(line) for line in shown]
    return _match(wanted, [shape(line) for line in output.rstrip("\n").splitlines()])


def _match(wanted: list[str], found: list[str]) -> bool:
    if not wanted:
        return not found
    if wanted[0] != _OMITTED:
        return bool(found) and wanted[0] == found[0] and _match(wanted[1:], found[1:])
    return any(_match(wanted[1:], found[start:]) for start in range(len(found) + 1))


class Shell:
    """A bash; standard output and errors are one.

    :param start: makes its process from a command, for example in namespaces.
    """

    def __init__(self, start: Callable[[list[str]], "subprocess.Popen[str]"]) -> None:
        self._process = start(["bash", "--norc"])

    def run(self, command: str) -> str:
        """Return what *command* prints; its failure is an AssertionError."""
        output, status = self._execute(command)
        assert status == 0, f"{command}: exit code {status}: {output}"
        return output

    def until(self, step: Step) -> None:
        """Execute the command of *step* until its output has the shape that the document shows."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            output, status = self._execute(step.command)
            if status == 0 and matches(step.output or (), output):
                return
            shown = "\n".join(step.output or ())
            found = f"shown\n{shown}\nfound, with exit code {status}\n{output}"
            assert time.monotonic() < deadline_s, f"{step.command}: {found}"
            time.sleep(1.0)  # the command takes CPU time from what it waits for

    def close(self) -> None:
        """End the shell; its jobs stay."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _execute(self, command: str) -> tuple[str, int]:
        """Return what *command* prints, and its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\nstatus=$?; echo; echo '{_END}' $status\n")
        self._process.stdin.flush()
        *lines, end = self._read(command)
        return "\n".join(lines).removesuffix("\n"), int(end.removeprefix(_END))

    def _read(self, command: str) -> list[str]:
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + DEADLINE_S
        output = self._process.stdout.fileno()
        data = b""
        while not re.search(rf"^{_END} \d+\n$".encode(), data, re.MULTILINE):
            left_s = max(0.0, deadline_s - time.monotonic())
            ready, _, _ = select.select([output], [], [], left_s)
            assert ready, f"{command} did not end: {data.decode()}"
            read = os.read(output, 1 << 16)
            assert read, f"{command} ended the shell"
            data += read
        return data.decode().removesuffix("\n").split("\n")
