# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The end of everything in a cgroup, and of nothing outside it.

Where the kernel has cgroup.kill (v2 since 5.14) it does that, forks included. Elsewhere each
process is held by a pidfd, looked at once more, and only then killed: a number may be another
process by now.
"""

import contextlib
import errno
import os
from pathlib import Path
import signal

from actuators.base import RefusedError
from actuators.cgroupfs import Cgroup
from controller.host import CgroupLayout
from controller.model import Target

__all__ = ("is_inside", "kill", "processes")


def kill(layout: CgroupLayout, target: Target) -> int:
    """Kill what is in the cgroup *target* and below; return how many processes were there.

    Call it again until that is none.

    :raises GoneError: the cgroup left.
    :raises RefusedError: the kernel does not let us, or we are in there ourselves.
    """
    found = processes(layout.mount, target)
    if os.getpid() in found or is_inside(os.getpid(), layout.hierarchy, target.path):
        raise RefusedError(errno.EPERM, f"{target.path}: the agent itself runs in there")
    with Cgroup(layout.mount, target) as cgroup:
        if found and cgroup.has("cgroup.kill"):
            cgroup.write("cgroup.kill", "1")
            return len(found)
    for pid in found:
        _kill_one(pid, layout.hierarchy, target.path)
    return len(found)


def processes(mount: Path, target: Target) -> list[int]:
    """Return the processes in the cgroup *target* and below, as far as they have a number here.

    :raises GoneError: the cgroup left.
    """
    with Cgroup(mount, target):  # it is the one that was meant
        found = []
        for folder, _, _ in os.walk(mount / target.path[1:]):
            with contextlib.suppress(OSError):  # it left, or is threaded
                text = (Path(folder) / "cgroup.procs").read_text(encoding="ascii")
                found += [int(pid) for pid in text.split() if pid != "0"]
    return found


def is_inside(pid: int, hierarchy: str, path: str) -> bool:
    """Whether a process is in the cgroup *path* of *hierarchy* or below; not if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    for line in lines:
        number, controllers, place = line.split(":", 2)
        mine = number == "0" if hierarchy == "v2" else hierarchy in controllers.split(",")
        if mine:
            return place == path or place.startswith(f"{path}/")
    return False


def _kill_one(pid: int, hierarchy: str, path: str) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if is_inside(pid, hierarchy, path):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)
