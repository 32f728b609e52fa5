# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Enumeration of tasks: of the host, of a process, of cgroups.

The lists are not atomic. A task that ends during the enumeration is left out without an error; a
task that starts during it may be missing.
"""

from collections.abc import Iterable, Iterator
import contextlib
import os
from pathlib import Path
from typing import Literal

from controller.core.model import Target

__all__ = ("all_tasks", "is_kernel_thread", "members", "threads")

_PF_KTHREAD = 0x0020_0000  # include/linux/sched.h
# Field 9 of /proc/PID/stat (proc_pid_stat(5)), as an index after the name of the command.
_FLAGS_FIELD = 6


def all_tasks() -> Iterator[int]:
    """Yield all tasks of this PID namespace."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 - only names are needed, of thousands
        if entry.isdecimal():
            yield from threads(int(entry))


def threads(pid: int) -> Iterator[int]:
    """Yield the threads of a process; none if it has ended."""
    with contextlib.suppress(OSError):
        yield from map(int, os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - as above


def members(
    mount: Path, version: Literal["v1", "v2"], groups: Iterable[tuple[Target, str]]
) -> Iterator[tuple[int, str]]:
    """Yield (task, group) for all tasks in the cgroups of *groups* and below.

    A cgroup that no longer exists is skipped.

    :param groups: pairs of a cgroup and the name to yield with its tasks.
    """
    file = "tasks" if version == "v1" else "cgroup.threads"
    for target, group in groups:
        top = mount / target.path[1:]
        try:
            if top.stat().st_ino != target.id:
                continue
        except OSError:  # gone
            continue
        for folder, _, _ in os.walk(top):
            with contextlib.suppress(OSError):
                text = (Path(folder) / file).read_text(encoding="ascii")
                # 0 stands for a task of another PID namespace, which has no id in this one.
                yield from ((int(tid), group) for tid in text.split() if tid != "0")


def is_kernel_thread(tid: int) -> bool:
    """Return whether a task is a kernel thread; also true for a task that has ended."""
    try:
        text = Path(f"/proc/{tid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return bool(int(text.rpartition(")")[2].split()[_FLAGS_FIELD]) & _PF_KTHREAD)
