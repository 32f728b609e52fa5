# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuator of cgroup.freeze (freezer.state on v1), and killing of all processes in a cgroup.

Canonical value of the knob: ``1`` (frozen) or ``0``. On v1 the freezer is a hierarchy of its own,
and the target is a cgroup of that hierarchy. The scope of targets is ``freezer`` on v2 as well,
because only the eviction on the host uses this knob. Freezing is asynchronous: until it is
complete freezer.state reads FREEZING; cgroup.freeze reads the written value at once
(Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst).

``kill`` ends the processes of a cgroup and its descendants, and no others. It uses cgroup.kill (v2
since 5.14), which includes concurrent forks. Without that file each process is opened as a pidfd,
its cgroup is read again, and then it is killed: its PID may belong to another process by then.
"""

from collections.abc import Container
import contextlib
import errno
import os
from pathlib import Path
import signal
from typing import ClassVar, Literal

from actuators.base import Phase, RefusedError
from actuators.file_knob import CgroupKnob, Step
from actuators.kernfs import Cgroup
from controller.core.model import Knob, KnobValue, Target
from controller.host.facts import CgroupLayout, mounts

__all__ = (
    "FREEZER",
    "CgroupFreeze",
    "cgroup_in",
    "check_spares_agent",
    "freezers",
    "is_inside",
    "kill",
    "processes",
)

FREEZER = "freezer"
_FILES: dict[Literal["v1", "v2"], str] = {"v1": "freezer.state", "v2": "cgroup.freeze"}
_STATES = {"0": "THAWED", "1": "FROZEN"}


class CgroupFreeze(CgroupKnob):
    """The actuator of ``Knob.FREEZE``."""

    knob = Knob.FREEZE
    files: ClassVar[dict[Literal["v1", "v2"], str]] = _FILES

    def unsupported_reason(self) -> str | None:
        """Return why this host lacks the knob, or ``None``; the root cgroup never has it."""
        name = _FILES[self.version]
        below = [path for path in self.mount.iterdir() if path.is_dir()]
        missing = bool(below) and not any((path / name).exists() for path in below)
        return f"this kernel has no {name} in {self.mount}" if missing else None

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return ``1`` if an open cgroup is frozen or being frozen, otherwise ``0``."""
        return KnobValue("0" if cgroup.read(_FILES[self.version]) in ("0", "THAWED") else "1")

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return the write from *previous* to *value*."""
        if value not in _STATES:
            raise ValueError(f"{value!r} is neither 0 nor 1")
        if previous == value:
            return ()
        text = value if self.version == "v2" else _STATES[value]
        return (Step(_FILES[self.version], text, value),)

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: at any time."""
        return Phase.ANY


def freezers(layout: CgroupLayout) -> tuple[CgroupFreeze, ...]:
    """Return the actuator for a host; none for a v1 host without freezer hierarchy."""
    if layout.version == "v2":
        return (CgroupFreeze(layout.mount, FREEZER, "v2"),)
    found = [mount for mount in mounts(None, {"cgroup"}) if FREEZER in mount.options]
    return tuple(CgroupFreeze(mount.point, FREEZER, "v1") for mount in found[:1])


def kill(layout: CgroupLayout, target: Target) -> int:
    """Kill all processes in the cgroup *target* and below; return how many there were.

    Processes may have been forked meanwhile: repeat the call until it returns 0.

    :raises GoneError: the cgroup no longer exists.
    :raises RefusedError: the kernel refused, or the agent itself is in that cgroup.
    """
    found = processes(layout.mount, target)
    check_spares_agent(layout, target.path, found)
    with Cgroup(layout.mount, target) as cgroup:
        if found and cgroup.has("cgroup.kill"):
            cgroup.write("cgroup.kill", "1")
            return len(found)
    for pid in found:
        _kill_one(pid, layout.hierarchy, target.path)
    return len(found)


def check_spares_agent(layout: CgroupLayout, path: str, found: Container[int] = ()) -> None:
    """Check that neither the agent nor its guardian is in the cgroup *path* or below.

    :param found: processes that are there.
    :raises RefusedError: one of them is.
    """
    own = os.getpid(), os.getppid()
    if any(pid in found or is_inside(pid, layout.hierarchy, path) for pid in own):
        raise RefusedError(errno.EPERM, f"{path}: the agent itself runs in it")


def processes(mount: Path, target: Target) -> list[int]:
    """Return the processes in the cgroup *target* and below that are in this PID namespace.

    :raises GoneError: the cgroup no longer exists.
    """
    with Cgroup(mount, target):  # verifies the kernfs id
        found = []
        for folder, _, _ in os.walk(mount / target.path[1:]):
            with contextlib.suppress(OSError):  # removed meanwhile, or threaded
                text = (Path(folder) / "cgroup.procs").read_text(encoding="ascii")
                found += [int(pid) for pid in text.split() if pid != "0"]
    return found


def is_inside(pid: int, hierarchy: str, path: str) -> bool:
    """Return whether a process is in the cgroup *path* of *hierarchy* or below.

    False for a process that has ended.
    """
    try:
        cgroup = cgroup_in(Path(f"/proc/{pid}/cgroup").read_bytes(), hierarchy)
    except OSError:
        return False
    return cgroup == path or cgroup.startswith(f"{path}/")


def cgroup_in(data: bytes, hierarchy: str) -> str:
    """Return the cgroup of *hierarchy* in *data* (/proc/PID/cgroup); empty without one.

    Names are any bytes but line feeds: not always UTF-8, and with other breaks of ``splitlines``.
    """
    for line in os.fsdecode(data).split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, cgroup = rest.partition(":")
        if number == "0" if hierarchy == "v2" else hierarchy in controllers.split(","):
            return cgroup
    return ""


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
