# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""cgroup.freeze, on v1 freezer.state: whether the tasks of a cgroup run at all.

Canonical value: ``0`` or ``1``. On v1 the freezer is a hierarchy of its own, so the target is the
cgroup there. Its scope is ``freezer`` on v2, too: nobody moves this knob but who evicts.

Freezing is asked for and takes a moment: v1 says FREEZING until then, v2 has what was written at
once (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst).

The end of everything in a cgroup, and of nothing outside it.

Where the kernel has cgroup.kill (v2 since 5.14) it does that, forks included. Elsewhere each
process is held by a pidfd, looked at once more, and only then killed: a number may be another
process by now.
"""

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

    def applies_to(self, target: Target) -> bool:
        """Pure: the cgroups of its hierarchy."""
        return super().applies_to(target) and target.scope == self.hierarchy

    def unsupported_reason(self) -> str | None:
        """Return why this host does not have the knob, or ``None``; the root never has it."""
        name = _FILES[self.version]
        below = [path for path in self.mount.iterdir() if path.is_dir()]
        missing = bool(below) and not any((path / name).exists() for path in below)
        return f"this kernel has no {name} in {self.mount}" if missing else None

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return whether an open cgroup is frozen, or about to be."""
        return KnobValue("0" if cgroup.read(_FILES[self.version]) in ("0", "THAWED") else "1")

    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: the one write from *previous* to *value*."""
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
    """Return the actuator for a host; none where a v1 host has no freezer hierarchy."""
    if layout.version == "v2":
        return (CgroupFreeze(layout.mount, FREEZER, "v2"),)
    found = [mount for mount in mounts(None, {"cgroup"}) if FREEZER in mount.options]
    return tuple(CgroupFreeze(mount.point, FREEZER, "v1") for mount in found[:1])


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
