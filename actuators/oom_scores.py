# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The oom_score_adj of single processes, and the values of a cgroup as a record keeps them.

The kernel takes a value that a process with CAP_SYS_RESOURCE wrote for the least that the target
may give itself (oom_score_adj_min, __set_oom_adj in fs/proc/base.c). So the agent writes without
that capability: raising needs none, nor does lowering to what the value was before.
"""

from collections.abc import Mapping
import contextlib
import errno
import os
from typing import NamedTuple

from controller.core.model import KnobValue
from controller.host.capabilities import SYS_RESOURCE, without_capability

__all__ = ("OpenProcess", "Originals", "Process")

_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Fields 4 and 22 of /proc/PID/stat (proc_pid_stat(5)), as indexes after the name of the command.
_PARENT, _START = 1, 19
# The process that becomes that of a container. It is in the cgroup before it has the value of the
# container, and may have that of the runtime (libcontainer/nsenter/nsexec.c of runc).
_PREPARED = b"runc:["


class Process(NamedTuple):
    """A process; ``start`` is when it began, in ticks of the kernel's clock."""

    pid: int
    start: int


class Originals(NamedTuple):
    """The values of a cgroup before ours: ``usual``, the largest, and those of ``others``.

    ``others`` has all processes that were seen, if their values differ; else none.

    >>> Originals(400, {Process(7, 99): -5}).text
    '400 7:99=-5'
    """

    usual: int
    others: Mapping[Process, int]

    @property
    def text(self) -> KnobValue:
        """The form in a record."""
        others = (f" {each.pid}:{each.start}={value}" for each, value in self.others.items())
        return KnobValue(f"{self.usual}{''.join(others)}")

    @classmethod
    def parse(cls, text: KnobValue) -> "Originals":
        """Return the values of a record.

        :raises ValueError: *text* has another form.
        """
        usual, *others = text.split()
        found = {}
        for each in others:
            process, _, value = each.partition("=")
            pid, _, start = process.partition(":")
            found[Process(int(pid), int(start))] = int(value)
        return cls(int(usual), found)

    def of(self, process: Process, parents: Mapping[int, tuple[int, int]]) -> int:
        """Return the value of *process*; *parents* has parent and start of the members, by pid."""
        seen = set()
        pid = process.pid
        while pid in parents and pid not in seen:
            seen.add(pid)
            parent, start = parents[pid]
            if (value := self.others.get(Process(pid, start))) is not None:
                return value
            pid = parent
        return self.usual


class OpenProcess:
    """The directory of a process in /proc; another process with its pid is never reached.

    :raises ProcessLookupError: there is no such process.
    """

    def __init__(self, pid: int) -> None:
        try:
            self._fd = os.open(f"/proc/{pid}", _OPEN_DIR)
        except FileNotFoundError:
            raise ProcessLookupError(errno.ESRCH, "ended") from None

    def __enter__(self) -> "OpenProcess":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _read(self, name: str) -> bytes:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            return os.read(fd, 65536)
        finally:
            os.close(fd)

    def parent_and_start(self) -> tuple[int, int]:
        """Return the pid of its parent, and when it began."""
        fields = self._read("stat").rpartition(b")")[2].split()
        return int(fields[_PARENT]), int(fields[_START])

    @property
    def is_prepared(self) -> bool:
        """Whether a runtime prepares it, by its name."""
        return self._read("comm").startswith(_PREPARED)

    @property
    def score(self) -> int:
        """Its oom_score_adj; a write is refused (OSError) below the least that it may have."""
        return int(self._read("oom_score_adj"))

    @score.setter
    def score(self, value: int) -> None:
        fd = os.open("oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            with contextlib.suppress(PermissionError), without_capability(SYS_RESOURCE):
                os.write(fd, b"%d" % value)
                return
            os.write(fd, b"%d" % value)  # below what a program with the capability wrote before
        finally:
            os.close(fd)
