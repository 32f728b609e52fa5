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
import time

from controller.demo.programs import Process, start
from tests.helpers import remove_cgroup

__all__ = ("OwnHost",)

_MOUNTS = Path("/proc/mounts")
# What kubelet would set for the whole kernel, unless it is so already.
_SYSCTLS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
_NAMESPACES = ("--mount", "--net", "--uts", "--ipc", "--cgroup")
_END_S = 10.0


class OwnHost:
    """Namespaces that exist while the context is open.

    :param home: a directory for what its programs write, on a file system that can be the upper
        layer of an overlay.
    :param name: the name of its cgroups, and its host name.
    """

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.name = home, name
        self._hierarchies = _hierarchies()
        self._holder: Process | None = None
        self._pid = 0

    def __enter__(self) -> "OwnHost":
        self.home.mkdir(exist_ok=True)
        try:
            self._make_cgroups()
            self._make_namespaces()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def network(self) -> str:
        """The path of the network namespace."""
        return f"/proc/{self._pid}/ns/net"

    def cgroup(self, controller: str, path: str = "") -> Path:
        """Return the directory of this machine that a program of the node sees as *path*."""
        mount = next(each for each in self._hierarchies if controller in each.name.split(","))
        return mount / self.name / path.lstrip("/")

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that executes *command* in the namespaces; see ``join``."""
        return ["nsenter", f"--target={self._pid}", *_NAMESPACES, "--", *command]

    def in_network(self, command: Sequence[str]) -> list[str]:
        """Return the command that executes *command* in the network namespace only."""
        return ["nsenter", f"--target={self._pid}", "--net", "--", *command]

    def join(self) -> None:
        """Move this process into the cgroups; for use between fork and exec."""
        for mount in self._hierarchies:
            file = os.open(mount / self.name / "cgroup.procs", os.O_WRONLY)
            os.write(file, b"0")
            os.close(file)

    def run(self, *command: str) -> str:
        """Return what *command* prints, executed inside; its failure is an AssertionError."""
        done = subprocess.run(
            self.inside(command), capture_output=True, text=True, preexec_fn=self.join, timeout=120
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        """End every process inside and remove the cgroups."""
        deadline_s = time.monotonic() + _END_S
        while any((mount / self.name).exists() for mount in self._hierarchies):
            try:
                for mount in self._hierarchies:
                    remove_cgroup(mount / self.name)
            except OSError:  # a process of one hierarchy still makes cgroups in another one
                if time.monotonic() > deadline_s:
                    raise
        if self._holder is not None:
            self._holder.stop()
            self._holder = None

    def _make_cgroups(self) -> None:
        for mount in self._hierarchies:
            path = mount / self.name
            path.mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (mount / file).exists() and (path / file).exists():
                    (path / file).write_text((mount / file).read_text())

    def _make_namespaces(self) -> None:
        ready = self.home / "ready"
        script = self.home / "inside.sh"
        script.write_text(self._script(ready))
        unshare = ("unshare", *_NAMESPACES, "--propagation=private", "sh", str(script))
        self._holder = start("own-host", unshare, self.home, join=self.join)
        while not ready.exists():
            self._holder.check()
            time.sleep(0.02)
        self._pid = self._holder.popen.pid

    def _script(self, ready: Path) -> str:
        lines = [
            "set -eu",
            f"hostname {self.name}",
            "ip link set lo up",
            # Before the mount of sysfs, whose network files are those of this namespace.
            "umount -l /sys/fs/cgroup",
            "mount -t sysfs sysfs /sys",
            "mount -t tracefs tracefs /sys/kernel/tracing",
            "mount -t debugfs debugfs /sys/kernel/debug",
            "mount -t bpf bpf /sys/fs/bpf",
            "mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup",
            "mount -t tmpfs -o mode=755 tmpfs /run",
        ]
        for mount in self._hierarchies:
            kind, options = _kind_of(mount)
            lines += [f"mkdir {mount}", f"mount -t {kind} -o {options} {kind} {mount}"]
        for folder in ("/var/lib", "/var/log"):
            own = self.home / folder.strip("/").replace("/", "-")
            own.mkdir(exist_ok=True)
            lines.append(f"mount --bind {own} {folder}")
        for name, value in _SYSCTLS.items():
            file = self.home / name.replace("/", "-")
            file.write_text(f"{value}\n")
            lines.append(f"mount --bind {file} /proc/sys/{name}")
        lines += ["mount --make-rshared /", f"touch {ready}", "exec sleep infinity"]
        return "\n".join(lines) + "\n"


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
