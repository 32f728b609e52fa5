# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cgroups of the demonstration: creation, members, CPU time, removal.

They are below ``sweetpoint-demo-PID`` in the hierarchy of the cpu controller and, on cgroup v1
hosts with a separate mount of cpuacct, below the same name there. No other cgroup is changed.
"""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import signal
import time

from controller.host.facts import mounts

__all__ = ("DemoCgroups", "DemoError", "find_cpuacct_mount")

EMPTY_WITHIN_S = 10.0
RETRY_S = 0.02


class DemoError(RuntimeError):
    """The demonstration cannot continue; the message is printed."""


class DemoCgroups:
    """A parent cgroup and its children; on v2 the cpu controller is enabled for the children.

    *cpu_mount* is the mount of the cpu hierarchy; *cpuacct_mount* is the mount of cpuacct if that
    is a different one (v1 only). *version* is ``v1`` or ``v2``. *tag* (default: the pid)
    distinguishes two demonstrations on one host. With *unified*, the mount of cgroup2 beside v1,
    they also exist there for programs whose sockets are to be told apart. *memory* is the mount
    with the memory controller, for cgroups that are added with it.
    """

    def __init__(
        self,
        *,
        cpu_mount: Path,
        cpuacct_mount: Path | None,
        version: str,
        tag: str | None = None,
        unified: Path | None = None,
        memory: Path | None = None,
    ) -> None:
        self.path = f"/sweetpoint-demo-{tag or os.getpid()}"
        self._v2 = version == "v2"
        mounts = [cpu_mount, cpuacct_mount] if cpuacct_mount else [cpu_mount]
        self._cpu_parents = [mount / self.path[1:] for mount in mounts]
        self._parents = [*self._cpu_parents, *([unified / self.path[1:]] if unified else [])]
        self._memory_parents = [] if memory is None else [memory / self.path[1:]]

    def create(self, names: tuple[str, ...]) -> None:
        """Create the parent and its children *names*.

        :raises DemoError: the hierarchy is read-only, or the cpu controller of v2 is not enabled
            for the parent.
        """
        for parent in self._parents:
            try:
                parent.mkdir()
                if self._v2:
                    self._enable_cpu(parent)
                for name in names:
                    (parent / name).mkdir()
            except OSError as error:
                raise DemoError(f"cannot create cgroups in {parent.parent}: {error}") from error

    def add(self, names: tuple[str, ...]) -> None:
        """Create *names* with limits of memory, parents before their children.

        :raises DemoError: the memory hierarchy is read-only.
        """
        for parent in self.directories(""):
            try:
                parent.mkdir(exist_ok=True)
                for name in ("", *names):
                    (parent / name).mkdir(exist_ok=True)
                    if self._v2 and any(each.startswith(f"{name}/") for each in ("/", *names)):
                        (parent / name / "cgroup.subtree_control").write_text("+cpu +memory")
            except OSError as error:
                raise DemoError(f"cannot create cgroups in {parent}: {error}") from error

    def directories(self, name: str) -> list[Path]:
        """Return the cgroups *name* of the hierarchies that count CPU time and memory."""
        parents = dict.fromkeys((*self._cpu_parents, *self._memory_parents))
        return [parent / name for parent in parents]

    def join(self, name: str, with_sockets: bool = False) -> None:
        """Move the calling process into the child *name*; for use between fork and exec.

        *with_sockets*: in *unified* as well.
        """
        for parent in self._parents if with_sockets else self._cpu_parents:
            (parent / name / "cgroup.procs").write_text("0")

    def oncpu_ns(self, name: str) -> int:
        """Return the CPU time that members of the child *name* have used so far, ns."""
        if not self._v2:
            return int((self._cpu_parents[-1] / name / "cpuacct.usage").read_text())
        stat = (self._cpu_parents[0] / name / "cpu.stat").read_text()
        return int(stat.split("usage_usec ", 1)[1].split("\n", 1)[0]) * 1000

    def kill(self, name: str) -> None:
        """Kill all members of the child *name* and return when it is empty.

        :raises DemoError: the cgroup still has members after 10 s.
        """
        deadline_s = time.monotonic() + EMPTY_WITHIN_S
        directories = [parent / name for parent in self._parents]
        while any((directory / "cgroup.procs").read_text() for directory in directories):
            for directory in directories:
                _kill_members(directory)
            if time.monotonic() > deadline_s:
                raise DemoError(f"cannot empty the cgroup {self.path}/{name}")
            time.sleep(RETRY_S)

    def remove(self) -> None:
        """Kill all members of the cgroups and remove the cgroups; can be repeated.

        :raises DemoError: a cgroup still has members after 10 s.
        """
        deadline_s = time.monotonic() + EMPTY_WITHIN_S
        while any(parent.exists() for parent in self._all_parents()):
            for directory in self._directories():
                _kill_members(directory)
                # rmdir fails with EBUSY until all members are reaped; the loop repeats it.
                with contextlib.suppress(OSError):
                    directory.rmdir()
            if time.monotonic() > deadline_s:
                raise DemoError(f"cannot empty the cgroups {self.path}")
            time.sleep(RETRY_S)

    def _all_parents(self) -> list[Path]:
        return [*self._parents, *self._memory_parents]

    def _directories(self) -> Iterator[Path]:
        """Yield children before their parents."""
        for parent in self._all_parents():
            for root, _, _ in os.walk(parent, topdown=False):
                yield Path(root)

    @staticmethod
    def _enable_cpu(parent: Path) -> None:
        if "cpu" not in (parent / "cgroup.controllers").read_text().split():
            raise DemoError(
                f"the cpu controller of cgroup v2 is not enabled in {parent.parent}: "
                "cgroup.subtree_control there must contain cpu"
            )
        (parent / "cgroup.subtree_control").write_text("+cpu")


def find_cpuacct_mount(cpu_mount: Path, mountinfo: str | None = None) -> Path | None:
    """Return the mount of cpuacct on cgroup v1, ``None`` if it is *cpu_mount*.

    *mountinfo* (default: of this process) is text as in ``/proc/PID/mountinfo``.

    :raises DemoError: cpuacct is not mounted.
    """
    found = [each.point for each in mounts(mountinfo, {"cgroup"}) if "cpuacct" in each.options]
    if not found:
        raise DemoError("the cgroup controller cpuacct is not mounted")
    return None if cpu_mount in found else found[0]


def _kill_members(directory: Path) -> None:
    """Kill the members through pidfds, so that a pid that was reused is never signalled."""
    try:
        pids = (directory / "cgroup.procs").read_text().split()
    except OSError:
        return
    for pid in map(int, pids):
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                if f"/{directory.parent.name}/{directory.name}\n" in _cgroups_of(pid):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)


def _cgroups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()
