# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's own place in the run queues: priority, session and a cgroup of its own.

Overload is when the agent is needed, and a nice value orders tasks within one cgroup or autogroup
only (sched(7)). A systemd unit or a container runtime gives the agent a cgroup; a shell does not,
and a start from there competes with everything else on the host. Such an agent makes the cgroup
``OWN_CGROUP`` below the root of the cpu hierarchy and moves into it. The name is fixed, so that a
cgroup left by a killed agent is found by the next start and by ``sweetpoint release`` without a
record. Several agents share it.
"""

from collections.abc import Iterable
import contextlib
import errno
import logging
import os
from pathlib import Path
import re
import time

from controller.host.facts import CgroupLayout, HostError, find_cgroup_layout

__all__ = (
    "OWN_CGROUP",
    "enter_own_cgroup",
    "is_shared",
    "leave_own_cgroup",
    "raise_session",
    "remove_own_cgroup",
)

_log = logging.getLogger(__name__)

OWN_CGROUP = "sweetpoint-agent"
# Ten times the default, as nice -10 within a cgroup: compiling the probes takes seconds of CPU
# time, and a service on the same CPU still has to run beside it.
_WEIGHT = {"v1": ("cpu.shares", 10 * 1024), "v2": ("cpu.weight", 10 * 100)}
_AUTOGROUP_NICE = -10
# The root, and the cgroups in which logind puts login sessions: shared by all their programs.
_SHARED = re.compile(r"/(user\.slice(/user-\d+\.slice(/session-[^/]+\.scope)?)?)?")
_FIRST_NAMESPACE = 0xEFFFFFFB  # PROC_CGROUP_INIT_INO in include/linux/proc_ns.h
_ROOT_INODE = 1  # of a kernfs: distinguishes the root of a hierarchy from a part of it
_ATTEMPTS = 3
_EMPTY_S = 0.2
_RETRY_S = 0.02


def enter_own_cgroup(pids: Iterable[int]) -> bool:
    """Move *pids* into ``OWN_CGROUP``; return whether that was done.

    Not done, without a message, if this process is in a cgroup that is not shared with arbitrary
    programs, in a cgroup namespace, or where the cpu controller is off below the root. A refusal
    by the kernel is logged.
    """
    try:
        layout = find_cgroup_layout()
        if not _may_leave(layout):
            return False
        return _enter(layout, tuple(pids))
    except HostError:
        pass  # reported by what cannot work without the hierarchy
    except OSError as error:
        _log.warning(
            "no cgroup of its own for the agent (%s): it competes with everything else that was "
            "started from a shell; start it as a systemd service",
            error,
        )
    return False


def leave_own_cgroup() -> None:
    """Move this process out of ``OWN_CGROUP``, if it is in there, and remove the cgroup."""
    try:
        layout = find_cgroup_layout()
        if _path_of_self(layout) == f"/{OWN_CGROUP}":
            (layout.mount / "cgroup.procs").write_text(str(os.getpid()))
            _remove(layout)
    except (HostError, OSError) as error:
        _log.warning("cgroup %s is left: %s; 'sweetpoint release' removes it", OWN_CGROUP, error)


def remove_own_cgroup() -> bool:
    """Remove what a killed agent left; return whether there was anything.

    A cgroup with processes, that is of a running agent, stays.

    :raises OSError: the kernel refuses.
    """
    try:
        return _remove(find_cgroup_layout())
    except HostError:
        return False


def raise_session() -> None:
    """Make this process the leader of a session and raise the priority of the session's autogroup.

    For a process in the root cgroup, where the scheduler groups tasks by session and nice values
    have no effect between sessions (kernel.sched_autogroup_enabled). In a session of its own,
    because the setting would otherwise stay with the shell.
    """
    with contextlib.suppress(OSError):  # already a leader, no autogroups, or no CAP_SYS_NICE
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(_AUTOGROUP_NICE))


def _enter(layout: CgroupLayout, pids: Iterable[int]) -> bool:
    own = layout.mount / OWN_CGROUP
    name, weight = _WEIGHT[layout.version]
    if layout.version == "v2" and "cpu" not in _words(layout.mount / "cgroup.subtree_control"):
        return False
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            own.mkdir(mode=0o755, exist_ok=True)
            (own / name).write_text(str(weight))
            for pid in pids:
                (own / "cgroup.procs").write_text(str(pid))
            break
        except OSError as error:
            # Another agent that ends removes the cgroup between two of these steps.
            if error.errno not in (errno.ENOENT, errno.ENODEV) or not attempts_left:
                raise
    return True


def _words(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split()


def _remove(layout: CgroupLayout) -> bool:
    deadline = time.monotonic() + _EMPTY_S
    while True:
        try:
            (layout.mount / OWN_CGROUP).rmdir()
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # Another agent is in it, or killed children that have not exited yet.
            if time.monotonic() >= deadline:
                return False
            time.sleep(_RETRY_S)
        else:
            return True


def is_shared(path: str) -> bool:
    """Return whether the cgroup at *path* of the cpu hierarchy is the root or a login session's."""
    return _SHARED.fullmatch(path) is not None


def _may_leave(layout: CgroupLayout) -> bool:
    # In another namespace the path "/" says nothing about the place in the hierarchy.
    if Path("/proc/self/ns/cgroup").stat().st_ino != _FIRST_NAMESPACE:
        return False
    if layout.mount.stat().st_ino != _ROOT_INODE:
        return False
    return is_shared(_path_of_self(layout))


def _path_of_self(layout: CgroupLayout) -> str:
    # cgroups(7): number:controllers:path, without controllers for cgroup2.
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if ("cpu" if layout.version == "v1" else "") in controllers.split(","):
            return path
    return ""
