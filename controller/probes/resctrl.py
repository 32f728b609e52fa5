# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What resctrl counts for one group: cache occupancy, and bytes to and from memory.

Interface: Documentation/arch/x86/resctrl.rst of Linux. A counter's file says ``Unavailable``
while the hardware has nothing to tell yet, ``Unassigned`` where it has too few counters, and
``Error`` when the kernel asked for something that does not exist.
"""

from collections.abc import Iterator
import errno
import os
from pathlib import Path
from typing import NamedTuple

from controller.core.model import Target

__all__ = ("CacheUse", "GroupCounters", "GroupMembership", "MonitorError", "group_membership")

_OCCUPANCY = "llc_occupancy"
# Both count the same traffic; the second leaves out what goes to other sockets.
_BANDWIDTH = ("mbm_total_bytes", "mbm_local_bytes")
_NOT_NOW = frozenset({"Unavailable", "Unassigned"})
_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})


class MonitorError(Exception):
    """The kernel could not read a counter; the message says which."""


class CacheUse(NamedTuple):
    """Bytes in the last-level caches now, and bytes to and from memory since the first look.

    Their sums over all caches; ``None`` while one of them is not known.
    """

    llc_occupancy_bytes: int | None
    memory_bandwidth_bytes: int | None


class GroupMembership(NamedTuple):
    """The group of a task: ``control`` is empty for the root group, ``monitor`` for its own."""

    control: str
    monitor: str


class GroupCounters:
    """Reads the counters of one group, and only of that one.

    The bandwidth grows by what each cache's counter grew by; one that went back belongs to
    something else now (the group's number was handed on, or the kernel started it anew).

    :param group: ``scope`` is the mount, ``id`` the inode of the group's directory.
    :param features: what ``info/L3_MON/mon_features`` lists.
    """

    def __init__(self, group: Target, features: frozenset[str]) -> None:
        self._group = group
        self._occupancy = _OCCUPANCY in features
        self._bandwidth = next((name for name in _BANDWIDTH if name in features), None)
        self._last: dict[str, int] = {}
        self._bytes = 0

    @property
    def counted_bytes(self) -> int:
        """Bytes to and from memory between the first and the last look."""
        return self._bytes

    def poll(self) -> CacheUse | None:
        """Return the counters; ``None``: the group is gone, or another one has its name.

        :raises MonitorError: the kernel says ``Error``.
        """
        try:
            directory = self._open()
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        try:
            return self._read(directory)
        finally:
            os.close(directory)

    def _open(self) -> int:
        """Return an fd of ``mon_data`` of the very group."""
        path = Path(self._group.scope) / self._group.path
        group = os.open(path, _OPEN_DIR)
        try:
            if os.fstat(group).st_ino != self._group.id:
                raise OSError(errno.ENOENT, "another group")
            return os.open("mon_data", _OPEN_DIR, dir_fd=group)
        finally:
            os.close(group)

    def _read(self, directory: int) -> CacheUse | None:
        occupancy: int | None = 0 if self._occupancy else None
        whole = self._bandwidth is not None
        for cache in sorted(os.listdir(directory)):
            if occupancy is not None:
                held = _counter(directory, f"{cache}/{_OCCUPANCY}")
                occupancy = None if held is None else occupancy + held
            if self._bandwidth is not None:
                count = _counter(directory, f"{cache}/{self._bandwidth}")
                whole = whole and count is not None
                self._advance(cache, count)
        return CacheUse(occupancy, self._bytes if whole else None)

    def _advance(self, cache: str, count: int | None) -> None:
        if count is not None:
            self._bytes += max(0, count - self._last.get(cache, count))
            self._last[cache] = count


def group_membership(tids: Iterator[int]) -> Iterator[tuple[int, GroupMembership]]:
    """Yield the groups of those of *tids* that are alive; none where the kernel does not tell.

    The file is proc_resctrl_show() of arch/x86/kernel/cpu/resctrl/rdtgroup.c.
    """
    for tid in tids:
        try:
            text = Path(f"/proc/{tid}/cpu_resctrl_groups").read_text(encoding="utf-8")
        except OSError:
            continue
        control, monitor = (line.partition(":")[2] for line in text.splitlines()[:2])
        if control:  # empty: not mounted
            yield tid, GroupMembership(control.removeprefix("/"), monitor)


def _counter(directory: int, name: str) -> int | None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        text = os.read(fd, 64).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    if text.isdecimal():
        return int(text)
    if text in _NOT_NOW:
        return None
    raise MonitorError(f"{name}: {text or 'empty'}")
