# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pressure stall totals of the host and of single cgroups.

Only the totals are used: averages over 10 s come too late and forget too slowly. The kernel
brings a cgroup's averages up to date at every read, so files stay open and are read once a
second, only for services, and of these only for those of which something is to be expected
(Documentation/accounting/psi.rst).
"""

from collections.abc import Collection, Iterable
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.probes.poll_queue import PollQueue

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

    ``host`` and ``workloads`` are what was known at ``read_ns``; ``changed`` is whose pressure
    is another since the last ``read``.

    :param unified: the mount of the cgroup2 tree, whose files tell it per cgroup.
    :param host: the directory with the host's own files.
    """

    def __init__(self, unified: Path | None, host: Path = Path("/proc/pressure")) -> None:
        self._unified = unified
        self._host_files = _open(0, host, "")
        self._wanted: dict[CgroupId, str] = {}
        self._files: dict[CgroupId, _Files] = {}
        self._turns = PollQueue()
        self._due_ns = 0
        self.read_ns: int | None = None
        self.host = Pressure(None, None, None)
        self.workloads: dict[CgroupId, Pressure] = {}
        self.changed: Collection[CgroupId] = ()

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Read the latency-sensitive ones of *workloads* from the next ``read`` on."""
        sensitive = [w for w in workloads if w.qos is QosClass.LS]
        wanted = {w.cgroup: w.path for w in sensitive[:_MAX_WORKLOADS]}
        self._wanted = {} if self._unified is None else wanted
        self._turns.set_cgroups(self._wanted)
        self._due_ns = 0

    def poll(self, now_ns: int, moved: Iterable[CgroupId] | None) -> None:
        """Bring ``host`` and ``workloads`` up to date if they are a second old.

        :param moved: who ran, waited or sent something since the last call; ``None``: perhaps
            everybody. Nobody else's files are read, but in turn: see ``PollQueue``.
        """
        self._turns.mark_active(moved)
        self.changed = ()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _EVERY_NS
        self.read_ns = now_ns
        self.host = _read(self._host_files)
        for cgroup in [c for c in self._files if c not in self._wanted]:
            self._forget(cgroup)
        self.changed = [cgroup for cgroup in self._turns.due() if self._has_changed(cgroup)]
        self._turns.mark_active(self.changed)

    def close(self) -> None:
        """Close all files."""
        for files in (self._host_files, *self._files.values()):
            _close(files)
        self._host_files = _Files(0, (None,) * len(Pressure._fields))
        self._files.clear()

    def _has_changed(self, cgroup: CgroupId) -> bool:
        """Read the pressure of *cgroup*; whether it is another than was known."""
        before = self.workloads.get(cgroup)
        self._open_cgroup(cgroup)
        files = self._files.get(cgroup)
        if files is None:
            return before is not None
        now = self.workloads[cgroup] = _read(files)
        return now != before

    def _open_cgroup(self, cgroup: CgroupId) -> None:
        """Open the files of a directory that is new, close those of one that went."""
        directory = f"{self._unified}{self._wanted[cgroup]}"
        try:
            inode = os.stat(directory).st_ino  # noqa: PTH116 - half the time of Path
        except (FileNotFoundError, NotADirectoryError):
            inode = 0
        known = self._files.get(cgroup)
        if known is not None and known.inode != inode:
            self._forget(cgroup)
            known = None
        if known is None and inode:
            self._files[cgroup] = _open(inode, Path(directory), ".pressure")

    def _forget(self, cgroup: CgroupId) -> None:
        _close(self._files.pop(cgroup))
        self.workloads.pop(cgroup, None)


def parse_some_ns(text: bytes) -> int | None:
    """Return the total of the ``some`` line in ns, or ``None`` if there is none.

    >>> parse_some_ns(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12")
    12000
    """
    # It is the first line.
    if not text.startswith(b"some "):
        return None
    return int(text.partition(b"\n")[0].rpartition(b"total=")[2]) * 1000


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
    return Pressure._make(map(_read_total_ns, files.fds))


def _read_total_ns(fd: int | None) -> int | None:
    if fd is None:
        return None
    try:
        return parse_some_ns(os.pread(fd, 512, 0))
    except OSError:  # ENODEV: the cgroup is gone, or its cgroup.pressure was switched off
        return None


def _close(files: _Files) -> None:
    for fd in files.fds:
        if fd is not None:
            os.close(fd)
