# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pressure stall totals of the host and of single cgroups (Documentation/accounting/psi.rst).

Only the totals are used: averages over 10 s react too late and decay too slowly. The kernel
updates a cgroup's averages at every read, which is expensive. So files stay open and are read
once a second at most, only for services, and mainly for those that were active (``PollQueue``). The
exception is a tick for a message of the kernel (``PressureAlarm``).
"""

from collections.abc import Collection, Iterable
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.odd_rows import report_odd
from controller.probes.poll_queue import PollQueue

__all__ = ("Pressure", "PressureMeter", "parse_some_ns")

_EVERY_NS = NS_PER_SEC
# Three descriptors each; the usual limit of 1,024 per process must leave room for other users.
_MAX_WORKLOADS = 200


class Pressure(NamedTuple):
    """Total time in ns with at least one task waiting for a resource; ``None``: not available."""

    cpu: int | None
    memory: int | None
    io: int | None


class _Files(NamedTuple):
    inode: int
    fds: tuple[int | None, ...]


class PressureMeter:
    """The pressure of the host and of latency-sensitive workloads.

    ``host`` and ``workloads`` are the totals as of ``read_ns``; ``changed`` are the workloads whose
    totals the last ``poll`` found changed.

    :param unified: the mount of the cgroup2 tree, for the pressure of cgroups; ``None``: no tree.
    :param host: the directory with the files of the host.
    """

    def __init__(self, unified: Path | None, host: Path = Path("/proc/pressure")) -> None:
        self._unified = unified
        self._host_files = _open(0, host, "")
        self._wanted: dict[CgroupId, str] = {}
        self._files: dict[CgroupId, _Files] = {}
        self._queue = PollQueue()
        self._due_ns = 0
        self.read_ns: int | None = None
        self.host = Pressure(None, None, None)
        self.workloads: dict[CgroupId, Pressure] = {}
        self.changed: Collection[CgroupId] = ()

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Read the latency-sensitive ones of *workloads* from the next ``poll`` on, at most 200."""
        sensitive = [w for w in workloads if w.qos is QosClass.LS]
        wanted = {w.cgroup: w.path for w in sensitive[:_MAX_WORKLOADS]}
        self._wanted = {} if self._unified is None else wanted
        self._queue.set_cgroups(self._wanted)
        self.expire()

    def poll(self, now_ns: int, active: Iterable[CgroupId] | None) -> None:
        """Update ``host`` and ``workloads`` if they are a second old.

        :param active: workloads with CPU time, waits or traffic since the last call; ``None`` if
            unknown. The files of the others are read in rotation: see ``PollQueue``.
        """
        self._queue.mark_active(active)
        self.changed = ()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _EVERY_NS
        self.read_ns = now_ns
        self.host = _read(self._host_files)
        for cgroup in [c for c in self._files if c not in self._wanted]:
            self._close_cgroup(cgroup)
        self.changed = [cgroup for cgroup in self._queue.due() if self._has_changed(cgroup)]
        self._queue.mark_active(self.changed)

    def expire(self) -> None:
        """Read in the next ``poll`` however old the readings are."""
        self._due_ns = 0

    def close(self) -> None:
        """Close all files."""
        for files in (self._host_files, *self._files.values()):
            _close(files)
        self._host_files = _Files(0, (None,) * len(Pressure._fields))
        self._files.clear()

    def _has_changed(self, cgroup: CgroupId) -> bool:
        """Read the pressure of *cgroup* and return whether it changed."""
        before = self.workloads.get(cgroup)
        self._open_cgroup(cgroup)
        files = self._files.get(cgroup)
        if files is None:
            return before is not None
        now = self.workloads[cgroup] = _read(files)
        return now != before

    def _open_cgroup(self, cgroup: CgroupId) -> None:
        """Open the files of a new directory, close those of a removed or replaced one."""
        directory = f"{self._unified}{self._wanted[cgroup]}"
        try:
            inode = os.stat(directory).st_ino  # noqa: PTH116 - half the time of Path
        except (FileNotFoundError, NotADirectoryError):
            inode = 0
        known = self._files.get(cgroup)
        if known is not None and known.inode != inode:
            self._close_cgroup(cgroup)
            known = None
        if known is None and inode:
            self._files[cgroup] = _open(inode, Path(directory), ".pressure")

    def _close_cgroup(self, cgroup: CgroupId) -> None:
        _close(self._files.pop(cgroup))
        self.workloads.pop(cgroup, None)


def parse_some_ns(text: bytes) -> int | None:
    """Return the total of the ``some`` line in ns; ``None`` if the first line is not that.

    >>> parse_some_ns(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12")
    12000
    """
    if not text.startswith(b"some "):
        return None
    row = text.partition(b"\n")[0]
    total_us = row.rpartition(b"total=")[2]
    if not total_us.isdigit():
        report_odd("pressure", row)
        return None
    return int(total_us) * 1000


def _open(inode: int, directory: Path, suffix: str) -> _Files:
    fds: list[int | None] = []
    for resource in Pressure._fields:
        fd = None
        # Without PSI the file does not exist or cannot be opened (EOPNOTSUPP).
        with contextlib.suppress(OSError):
            fd = os.open(directory / f"{resource}{suffix}", os.O_RDONLY)
        fds.append(fd)
    return _Files(inode, tuple(fds))


def _read(files: _Files) -> Pressure:
    return Pressure._make(map(_read_total_ns, files.fds))


def _read_total_ns(fd: int | None) -> int | None:
    if fd is None:
        return None
    try:
        return parse_some_ns(os.pread(fd, 512, 0))
    except OSError:  # ENODEV: the cgroup was removed, or its cgroup.pressure set to 0
        return None


def _close(files: _Files) -> None:
    for fd in files.fds:
        if fd is not None:
            os.close(fd)
