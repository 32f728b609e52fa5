# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The demonstration's own cgroups: made, filled, accounted, emptied and removed.

They hang below ``sweetpoint-demo-PID`` in the hierarchy of the cpu controller and, on cgroup
v1 hosts that mount it apart, below the same name in cpuacct. No other cgroup is touched.
"""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import signal
import time

__all__ = ("DemoCgroups", "DemoError", "find_cpuacct_mount")

EMPTY_WITHIN_S = 10.0
RETRY_S = 0.02


class DemoError(RuntimeError):
    """The demonstration cannot go on; the message is for the person who started it."""


class DemoCgroups:
    """A parent and its children *names*; on v2 the cpu controller is enabled below the parent.

    *cpu_mount* is the mount of the cpu hierarchy, *cpuacct_mount* that of cpuacct where it is
    another one (v1 only), *version* ``v1`` or ``v2``; *tag* (default: the pid) tells two
    demonstrations apart.
    """

    def __init__(
        self, *, cpu_mount: Path, cpuacct_mount: Path | None, version: str, tag: str | None = None
    ) -> None:
        self.path = f"/sweetpoint-demo-{tag or os.getpid()}"
        self._v2 = version == "v2"
        mounts = [cpu_mount, cpuacct_mount] if cpuacct_mount else [cpu_mount]
        self._parents = [mount / self.path[1:] for mount in mounts]

    def create(self, names: tuple[str, ...]) -> None:
        """Make the cgroups.

        :raises DemoError: the hierarchy is read-only, or v2 does not hand out cpu.
        """
        for parent in self._parents:
            try:
                parent.mkdir()
                if self._v2:
                    self._enable_cpu(parent)
                for name in names:
                    (parent / name).mkdir()
            except OSError as error:
                raise DemoError(f"cannot make cgroups in {parent.parent}: {error}") from error

    def join(self, name: str) -> None:
        """Move the calling process into *name*; for use between fork and exec."""
        for parent in self._parents:
            (parent / name / "cgroup.procs").write_text("0")

    def oncpu_ns(self, name: str) -> int:
        """Return the CPU time that the members of *name* have used so far, ns."""
        if not self._v2:
            return int((self._parents[-1] / name / "cpuacct.usage").read_text())
        stat = (self._parents[0] / name / "cpu.stat").read_text()
        return int(stat.split("usage_usec ", 1)[1].split("\n", 1)[0]) * 1000

    def kill(self, name: str) -> None:
        """Kill whatever lives in *name* and return when it is empty.

        :raises DemoError: something survives for ten seconds.
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
        """Kill whatever lives in the cgroups and remove them; repeat at will.

        :raises DemoError: something survives for ten seconds.
        """
        deadline_s = time.monotonic() + EMPTY_WITHIN_S
        while any(parent.exists() for parent in self._parents):
            for directory in self._directories():
                _kill_members(directory)
                # Busy while the dead are still being buried: try again.
                with contextlib.suppress(OSError):
                    directory.rmdir()
            if time.monotonic() > deadline_s:
                raise DemoError(f"cannot empty the cgroups {self.path}")
            time.sleep(RETRY_S)

    def _directories(self) -> Iterator[Path]:
        """Yield children before their parents."""
        for parent in self._parents:
            for root, _, _ in os.walk(parent, topdown=False):
                yield Path(root)

    @staticmethod
    def _enable_cpu(parent: Path) -> None:
        if "cpu" not in (parent / "cgroup.controllers").read_text().split():
            raise DemoError(
                f"cgroup v2 does not hand out the cpu controller in {parent.parent}: "
                "cgroup.subtree_control there must hold cpu"
            )
        (parent / "cgroup.subtree_control").write_text("+cpu")


def find_cpuacct_mount(cpu_mount: Path, mountinfo: str | None = None) -> Path | None:
    """Return where v1's cpuacct is mounted, None where *cpu_mount* has it as well.

    :raises DemoError: it is mounted nowhere.
    """
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text()
    found = []
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - cgroup ")
        if "cpuacct" in tail.rpartition(" ")[2].split(","):
            found.append(Path(head.split()[4]))
    if not found:
        raise DemoError("the cgroup controller cpuacct is mounted nowhere")
    return None if cpu_mount in found else found[0]


def _kill_members(directory: Path) -> None:
    """Kill the members by pidfd, so that a pid that was reused meanwhile is never hit."""
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
