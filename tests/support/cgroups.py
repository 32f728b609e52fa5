# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests with cgroups."""

import os
from pathlib import Path
import signal
import time

from controller.host.facts import find_cgroup_layout
from tests.support.waiting import DEADLINE_S


def remove_cgroup(root: Path) -> None:
    """Kill all processes in *root* and below it and remove these cgroups.

    :raises OSError: a cgroup has processes that do not end.
    """
    deadline = time.monotonic() + DEADLINE_S
    while root.exists():
        directories = [Path(parent) for parent, _, _ in os.walk(root, topdown=False)]
        try:
            for directory in directories:
                _kill_members(directory)
            for directory in directories:
                directory.rmdir()
        except FileNotFoundError:
            continue  # a part of the tree was removed by another process meanwhile
        except OSError:  # EBUSY: killed processes leave their cgroup only when they have exited
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def children_of(parent: int) -> list[int]:
    """Return the processes that *parent* started, also on a kernel without CONFIG_PROC_CHILDREN."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(text.partition("PPid:")[2].split()[0]) == parent:
            found.append(int(status.parent.name))
    return found


def _kill_members(directory: Path) -> None:
    for pid in map(int, (directory / "cgroup.procs").read_text().split()):
        if pid == os.getpid():  # the test has moved itself into this cgroup: move it out
            (find_cgroup_layout().mount / "cgroup.procs").write_text(str(pid))
            continue
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # The pid may have been reused since it was read. The pidfd prevents that from here on.
            if str(pid) in (directory / "cgroup.procs").read_text().split():
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(pidfd)
