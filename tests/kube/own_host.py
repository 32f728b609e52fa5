# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A place for a whole node on the running kernel: namespaces and cgroups of its own.

Its programs see their own cgroups as the root of every hierarchy, their own ``/run``, ``/var/lib``
and ``/var/log``, their own network and host name, and the machine's other files and processes. The
process ids are those of the machine, because probes see no others.
"""

from collections.abc import Sequence
import os
from pathlib import Path
import subprocess
from typing import Protocol

from controller.demo.programs import Process, start
from tests.kube.asking import Program, answer
from tests.support.cgroups import remove_cgroup
from tests.support.temporary import Temporary
from tests.support.waiting import DEADLINE_S, eventually

__all__ = ("OwnHost", "Running")

_MOUNTS = Path("/proc/mounts")
# What kubelet would set for the whole kernel, unless it is so already.
_SYSCTLS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}


class Running(Program, Protocol):
    """A program in the place."""

    def stop(self, signum: int, within_s: float) -> None:
        """Send *signum* and wait until it has ended; SIGKILL after *within_s*."""


class OwnHost(Temporary):
    """Namespaces that exist while the context is open.

    :param home: a directory for what its programs write, on a file system that can be the upper
        layer of an overlay.
    :param name: the name of its cgroups, and its host name.
    """

    namespaces: tuple[str, ...] = ("--mount", "--net", "--uts", "--ipc", "--cgroup")

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.name = home, name
        self._hierarchies = _hierarchies()
        # Pure cgroup v2: its root has to stay without processes, because it has controllers.
        self._unified = len(self._hierarchies) == 1
        self._holder: Process | None = None
        self._pid = 0

    def make(self) -> None:
        """Make the cgroups and the namespaces."""
        self.home.mkdir(exist_ok=True)
        self._make_cgroups()
        self._make_namespaces()

    @property
    def network(self) -> str:
        """The path of the network namespace."""
        return f"/proc/{self._pid}/ns/net"

    def cgroup(self, controller: str, path: str = "") -> Path:
        """Return the directory of this machine that a program of the node sees as *path*."""
        names = [mount.name.split(",") for mount in self._hierarchies]
        index = (
            0 if self._unified else next(i for i, each in enumerate(names) if controller in each)
        )
        return self._hierarchies[index] / self.name / path.lstrip("/")

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that executes *command* in the namespaces; see ``join``."""
        return ["nsenter", f"--target={self._pid}", *self.namespaces, "--", *command]

    def file(self, path: str) -> Path:
        """Return the path of this machine for the file that programs inside see as *path*."""
        return Path(f"/proc/{self._pid}/root") / path.lstrip("/")

    def start(self, name: str, command: Sequence[str]) -> Running:
        """Start *command* inside; its log is ``NAME.err`` in ``home``."""
        return start(name, self.inside(command), self.home, join=self.join)

    def in_network(self, command: Sequence[str]) -> list[str]:
        """Return the command that executes *command* in the network namespace only."""
        return ["nsenter", f"--target={self._pid}", "--net", "--", *command]

    def join(self) -> None:
        """Move this process into the cgroups; for use between fork and exec."""
        for mount in self._hierarchies:
            cgroup = mount / self.name / ("programs" if self._unified else "")
            file = os.open(cgroup / "cgroup.procs", os.O_WRONLY)
            os.write(file, b"0")
            os.close(file)

    def run(self, *command: str) -> str:
        """Return what *command* prints, executed inside; its failure is an AssertionError."""
        done = subprocess.run(
            self.inside(command),
            capture_output=True,
            text=True,
            preexec_fn=self.join,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        """End every process inside and remove the cgroups."""
        eventually("the end of the cgroups", self._remove_cgroups)
        if self._holder is not None:
            self._holder.stop()
            self._holder = None

    def _remove_cgroups(self) -> bool:
        try:
            for mount in self._hierarchies:
                remove_cgroup(mount / self.name)
        except OSError:  # a process of one hierarchy still makes cgroups in another one
            return False
        return not any((mount / self.name).exists() for mount in self._hierarchies)

    def _make_cgroups(self) -> None:
        for mount in self._hierarchies:
            path = mount / self.name
            path.mkdir()
            if self._unified:
                (path / "programs").mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):
                if not self._unified and (path / file).exists():
                    (path / file).write_text((mount / file).read_text())

    def _make_namespaces(self) -> None:
        ready = self.home / "ready"
        ready.unlink(missing_ok=True)  # of an earlier node in the same home
        script = self.home / "inside.sh"
        script.write_text(
            "\n".join(("set -eu", *self.mounts(), f"touch {ready}", f"exec {self.init()}", ""))
        )
        options = ("--fork", "--kill-child") if "--pid" in self.namespaces else ()
        names = (*self.namespaces, *options, "--propagation=private")
        unshare = ("unshare", *names, "sh", str(script))
        self._holder = start("own-host", unshare, self.home, join=self._join_root)
        answer("the namespaces", ready.exists, [self._holder])
        self._pid = self.find_init(self._holder.popen.pid)
        if self._unified:
            (self._hierarchies[0] / "cgroup.procs").write_text(str(self._holder.popen.pid))

    def _join_root(self) -> None:
        # The cgroup of a process at unshare is the root of its new namespace.
        for mount in self._hierarchies:
            (mount / self.name / "cgroup.procs").write_text("0")

    def find_init(self, holder: int) -> int:
        """Return the process whose namespaces are the place; *holder* is the one that made them."""
        return holder

    def init(self) -> str:
        """Return the shell command that keeps the namespaces."""
        return "sleep infinity"

    def mounts(self) -> list[str]:
        """Return the shell commands that make the place, in its namespaces."""
        lines = [
            f"hostname {self.name}",
            "ip link set lo up",
            # Before the mount of sysfs, whose network files are those of this namespace.
            "umount -l /sys/fs/cgroup",
            "mount -t sysfs sysfs /sys",
            "mount -t tracefs tracefs /sys/kernel/tracing",
            "mount -t debugfs debugfs /sys/kernel/debug",
            "mount -t bpf bpf /sys/fs/bpf",
            "mount -t tmpfs -o mode=755 tmpfs /run",
        ]
        if not self._unified:
            lines.append("mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup")
        for mount in self._hierarchies:
            kind, options = _kind_of(mount)
            lines += [f"mkdir -p {mount}", f"mount -t {kind} -o {options} {kind} {mount}"]
        for folder in ("/var/lib", "/var/log"):
            own = self.home / folder.strip("/").replace("/", "-")
            own.mkdir(exist_ok=True)
            lines.append(f"mount --bind {own} {folder}")
        for name, value in _SYSCTLS.items():
            file = self.home / name.replace("/", "-")
            file.write_text(f"{value}\n")
            lines.append(f"mount --bind {file} /proc/sys/{name}")
        lines.append("mount --make-rshared /")
        return lines


def _hierarchies() -> list[Path]:
    return [
        Path(fields[1])
        for fields in map(str.split, _MOUNTS.read_text().splitlines())
        if fields[2] in ("cgroup", "cgroup2")
    ]


def _kind_of(mount: Path) -> tuple[str, str]:
    for fields in map(str.split, _MOUNTS.read_text().splitlines()):
        if fields[1] == str(mount):
            if fields[2] == "cgroup2":
                return "cgroup2", "rw"
            names = fields[3].split(",")
            named = [each for each in names if each.startswith("name=")]
            return "cgroup", f"none,{named[0]}" if named else mount.name
    raise AssertionError(f"{mount} is not mounted")
