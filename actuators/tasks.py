# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which tasks there are: of the host, of a process, of a cgroup. What leaves meanwhile is not
told, what comes meanwhile may be missed."""

from collections.abc import Iterable, Iterator
import contextlib
import os
from pathlib import Path
from typing import Literal

from controller.core.model import Target

__all__ = ("all_tasks", "is_kernel_thread", "members", "threads")

_PF_KTHREAD = 0x0020_0000  # include/linux/sched.h
# Field 9 of /proc/PID/stat, counted from after the command's name (proc_pid_stat(5)).
_FLAGS_FIELD = 6


def all_tasks() -> Iterator[int]:
    """Yield every task of this process-id namespace."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names, thousands of them
        if entry.isdecimal():
            yield from threads(int(entry))


def threads(pid: int) -> Iterator[int]:
    """Yield the threads of a process; none if it is gone."""
    with contextlib.suppress(OSError):
        yield from map(int, os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - as above


def members(
    mount: Path, version: Literal["v1", "v2"], groups: Iterable[tuple[Target, str]]
) -> Iterator[tuple[int, str]]:
    """Yield (task, group) of all tasks in these cgroups and below, as long as they are there."""
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
                # 0 is a task of another process-id namespace, which cannot be named from here.
                yield from ((int(tid), group) for tid in text.split() if tid != "0")


def is_kernel_thread(tid: int) -> bool:
    """Return whether a task is the kernel's own; one that is gone counts as such."""
    try:
        text = Path(f"/proc/{tid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return bool(int(text.rpartition(")")[2].split()[_FLAGS_FIELD]) & _PF_KTHREAD)
