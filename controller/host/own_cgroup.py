# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's own place in the run queues: priority, slice, session and a cgroup of its own.

Overload is when the agent is needed, and a nice value orders tasks within one cgroup or autogroup
only (sched(7)). A systemd unit or a container runtime gives the agent a cgroup; a shell does not,
and a start from there competes with everything else on the host. Such an agent makes the cgroup
``OWN_CGROUP`` below the root of the cpu hierarchy and moves into it. The name is fixed, so that a
cgroup left by a killed agent is found by the next start and by ``sweetpoint release`` without a
record. Several agents share it.

While it starts, the cgroup has ten times the usual weight. A tick takes milliseconds, and with that
weight a service that wakes up on the same CPU waits for its end: on two CPUs the p99 of a service
was three times as long (docs/MEASUREMENTS.md). With little weight the kernel lets the service run
at once. So the agent ticks with little, as long as its ticks begin in time (``OwnWeight``).
"""

from collections.abc import Iterable
import contextlib
import errno
import logging
import os
from pathlib import Path
import re
import struct
import time

from controller.host.facts import CgroupLayout, HostError, find_cgroup_layout, libc

__all__ = (
    "OWN_CGROUP",
    "OwnWeight",
    "enter_own_cgroup",
    "is_shared",
    "leave_own_cgroup",
    "raise_session",
    "raise_weight",
    "remove_own_cgroup",
    "shorten_slice",
)

_log = logging.getLogger(__name__)

OWN_CGROUP = "sweetpoint-agent"
# Ten times the default, as nice -10 within a cgroup: compiling the probes takes seconds of CPU
# time, and a service on the same CPU still has to run beside it. The low weight is still six per
# cent of a contended CPU, several times of what ticks take.
_WEIGHT_FILE = {"v1": "cpu.shares", "v2": "cpu.weight"}
_HIGH = {"v1": 10 * 1024, "v2": 10 * 100}
_LOW = {"v1": 64, "v2": 6}
# A tick that begins this late had no CPU, and for how long the weight is high then.
_LATE_NS = 50_000_000
_HIGH_NS = 30_000_000_000
_AUTOGROUP_NICE = -10
# struct sched_attr of include/uapi/linux/sched/types.h, and the calls, which the C library lacks.
_SCHED_ATTR = struct.Struct("=IIQiIQQQII")
_SCHED_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
_RUNTIME = 5
_SLICE_NS = 100_000
# The root, and the cgroups in which logind puts login sessions: shared by all their programs.
_SHARED = re.compile(r"/(user\.slice(/user-\d+\.slice(/session-[^/]+\.scope)?)?)?")
_FIRST_NAMESPACE = 0xEFFFFFFB  # PROC_CGROUP_INIT_INO in include/linux/proc_ns.h
_ROOT_INODE = 1  # of a kernfs: distinguishes the root of a hierarchy from a part of it
_ATTEMPTS = 3
_EMPTY_S = 0.2
_RETRY_S = 0.02


class OwnWeight:
    """Moves the weight of ``OWN_CGROUP`` with the lateness of the agent's ticks.

    Without effect where this process is in another cgroup, whose weight belongs to others.
    """

    __slots__ = ("_file", "_high", "_high_until_ns", "_low", "_present")

    def __init__(self) -> None:
        self._file: Path | None = None
        self._present = self._high = self._low = 0
        self._high_until_ns = 0
        with contextlib.suppress(HostError, OSError):
            layout = find_cgroup_layout()
            if _path_of_self(layout) == f"/{OWN_CGROUP}":
                self._file = layout.mount / OWN_CGROUP / _WEIGHT_FILE[layout.version]
                self._high, self._low = _HIGH[layout.version], _LOW[layout.version]

    def update(self, now_ns: int, late_ns: int) -> None:
        """Take how late the tick of *now_ns* (CLOCK_MONOTONIC) begins."""
        if self._file is None:
            return
        late = late_ns >= _LATE_NS
        if late:
            self._high_until_ns = now_ns + _HIGH_NS
        wanted = self._high if now_ns < self._high_until_ns else self._low
        # Another agent in the same cgroup may have written less.
        if late or wanted != self._present:
            self._present = wanted
            with contextlib.suppress(OSError):  # removed by an agent that has just ended
                self._file.write_text(str(wanted))


def raise_weight() -> None:
    """Give ``OWN_CGROUP`` the high weight, if this process is in there, until a tick was in time.

    For the guardian of an agent that does not get as far as its next tick. That tick is late.
    """
    with contextlib.suppress(HostError, OSError):
        layout = find_cgroup_layout()
        if _path_of_self(layout) == f"/{OWN_CGROUP}":
            file = layout.mount / OWN_CGROUP / _WEIGHT_FILE[layout.version]
            file.write_text(str(_HIGH[layout.version]))


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


def shorten_slice() -> None:
    """Give this thread, and what it starts from now on, slices of 0.1 ms.

    With little weight the agent is then still chosen soon after it wakes up, and gives way again
    after 0.1 ms. Of a fair task the kernel takes ``sched_runtime`` as its slice from 6.12 on
    (__setparam_fair in kernel/sched/syscalls.c), and not below 0.1 ms; an older kernel ignores it.
    """
    import ctypes  # see facts.libc

    calls = _SCHED_CALLS.get(os.uname().machine)
    if calls is None:
        return
    set_attributes, get_attributes = calls
    buffer = ctypes.create_string_buffer(_SCHED_ATTR.size)
    size = ctypes.c_uint(_SCHED_ATTR.size)
    if libc().syscall(get_attributes, 0, buffer, size, 0) != 0:
        return
    fields = list(_SCHED_ATTR.unpack(buffer.raw))
    fields[_RUNTIME] = _SLICE_NS
    buffer.raw = _SCHED_ATTR.pack(*fields)
    if libc().syscall(set_attributes, 0, buffer, 0) != 0:
        _log.debug("the slice stays as it is: %s", os.strerror(ctypes.get_errno()))


def _enter(layout: CgroupLayout, pids: Iterable[int]) -> bool:
    own = layout.mount / OWN_CGROUP
    file = _WEIGHT_FILE[layout.version]
    if layout.version == "v2" and "cpu" not in _words(layout.mount / "cgroup.subtree_control"):
        return False
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            own.mkdir(mode=0o755, exist_ok=True)
            (own / file).write_text(str(_HIGH[layout.version]))
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
