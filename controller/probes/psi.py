# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pressure stall totals of the host and of single cgroups.

Only the totals are used: averages over 10 s come too late and forget too slowly. The kernel
brings a cgroup's averages up to date at every read, so files stay open and are read once a
second, and only for services (Documentation/accounting/psi.rst).
"""

from collections.abc import Iterable, Mapping
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from controller.model import CgroupId, QosClass, Workload
from controller.units import NS_PER_SEC

__all__ = ("Pressure", "PressureMeter", "parse_some_ns")

_EVERY_NS = NS_PER_SEC
# Three files each; descriptors beyond a limit of 1,024 would fail somewhere else.
_MAX_WORKLOADS = 200


class Pressure(NamedTuple):
    """Time during which some task waited for a resource, ns; ``None`` where it is not told."""

    cpu: int | None
    memory: int | None
    io: int | None


class _Files(NamedTuple):
    inode: int
    fds: tuple[int | None, ...]


class PressureMeter:
    """Follows the pressure of the host and of latency-sensitive workloads.

    ``host`` and ``workloads`` are what was read at ``read_ns``.

    :param unified: the mount of the cgroup2 tree, whose files tell it per cgroup.
    :param host: the directory with the host's own files.
    """

    def __init__(self, unified: Path | None, host: Path = Path("/proc/pressure")) -> None:
        self._unified = unified
        self._host_files = _open(0, host, "")
        self._wanted: dict[CgroupId, str] = {}
        self._files: dict[CgroupId, _Files] = {}
        self._due_ns = 0
        self.read_ns: int | None = None
        self.host = Pressure(None, None, None)
        self.workloads: Mapping[CgroupId, Pressure] = {}

    def follow(self, workloads: Iterable[Workload]) -> None:
        """Read the latency-sensitive ones of *workloads* from the next ``read`` on."""
        sensitive = [w for w in workloads if w.qos is QosClass.LS]
        self._wanted = {w.cgroup: w.path for w in sensitive[:_MAX_WORKLOADS]}
        self._due_ns = 0

    def read(self, now_ns: int) -> None:
        """Bring ``host`` and ``workloads`` up to date if they are a second old."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _EVERY_NS
        self.read_ns = now_ns
        self._look()
        self.host = _read(self._host_files)
        self.workloads = {cgroup: _read(files) for cgroup, files in self._files.items()}

    def close(self) -> None:
        """Close all files."""
        for files in (self._host_files, *self._files.values()):
            _close(files)
        self._host_files = _Files(0, (None,) * len(Pressure._fields))
        self._files.clear()

    def _look(self) -> None:
        """Open the files of directories that are new, close those of directories that went."""
        if self._unified is None:
            return
        for cgroup in [c for c in self._files if c not in self._wanted]:
            _close(self._files.pop(cgroup))
        for cgroup, path in self._wanted.items():
            directory = f"{self._unified}{path}"
            try:
                inode = os.stat(directory).st_ino  # noqa: PTH116 - half the time of Path
            except (FileNotFoundError, NotADirectoryError):
                inode = 0
            known = self._files.get(cgroup)
            if known is not None and known.inode != inode:
                _close(self._files.pop(cgroup))
                known = None
            if known is None and inode:
                self._files[cgroup] = _open(inode, Path(directory), ".pressure")


def parse_some_ns(text: bytes) -> int | None:
    """Return the total of the ``some`` line in ns, or ``None`` if there is none.

    >>> parse_some_ns(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12")
    12000
    """
    for line in text.splitlines():
        if line.startswith(b"some "):
            return int(line.rpartition(b"total=")[2]) * 1000
    return None


def _open(inode: int, directory: Path, suffix: str) -> _Files:
    fds: list[int | None] = []
    for resource in Pressure._fields:
        fd = None
        # Without PSI there is no file, or one that cannot be opened (EOPNOTSUPP).
        with contextlib.suppress(OSError):
            fd = os.open(directory / f"{resource}{suffix}", os.O_RDONLY)
        fds.append(fd)
    return _Files(inode, tuple(fds))


def _read(files: _Files) -> Pressure:
    values: list[int | None] = []
    for fd in files.fds:
        value = None
        # ENODEV: the cgroup is gone, or its cgroup.pressure was switched off.
        with contextlib.suppress(OSError):
            value = None if fd is None else parse_some_ns(os.pread(fd, 512, 0))
        values.append(value)
    return Pressure(*values)


def _close(files: _Files) -> None:
    for fd in files.fds:
        if fd is not None:
            os.close(fd)
