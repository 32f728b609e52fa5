# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resctrl counters of one group: cache occupancy, and bytes to and from memory.

Interface: Documentation/arch/x86/resctrl.rst of Linux. A counter's file contains ``Unavailable``
while the hardware has no value yet, ``Unassigned`` if the hardware has too few counters, and
``Error`` if the kernel requested an event that does not exist.
"""

from collections.abc import Iterator
import errno
import os
from pathlib import Path
from typing import NamedTuple

from controller.core.model import Target
from controller.host.odd_rows import report_odd

__all__ = ("CacheUse", "GroupCounters", "GroupMembership", "MonitorError", "group_membership")

_OCCUPANCY = "llc_occupancy"
# Both count the same traffic; the second without the traffic to other sockets.
_BANDWIDTH = ("mbm_total_bytes", "mbm_local_bytes")
_CACHE = "mon_L3_"
_UNAVAILABLE = frozenset({"Unavailable", "Unassigned"})
_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})


class MonitorError(Exception):
    """A counter could not be read; the message names its file."""


class CacheUse(NamedTuple):
    """Bytes in the last-level caches now, and bytes to and from memory since the first poll.

    Sums over all caches; ``None`` while the value of one cache is unavailable.
    """

    llc_occupancy_bytes: int | None
    memory_bandwidth_bytes: int | None


class GroupMembership(NamedTuple):
    """The groups of a task.

    ``control`` is empty for the root group; ``monitor`` is empty if the task is in no monitoring
    group of its control group.
    """

    control: str
    monitor: str


class GroupCounters:
    """Reads the counters of one group, identified by its inode.

    The bandwidth grows by the growth of each cache's counter. A counter that fell was restarted
    (the hardware id was given to another group, or the kernel reset the counter); its new value
    becomes the base.

    :param group: ``scope`` is the mount, ``id`` the inode of the group's directory.
    :param features: the entries of ``info/L3_MON/mon_features``.
    """

    def __init__(self, group: Target, features: frozenset[str]) -> None:
        self._group = group
        self._occupancy = _OCCUPANCY in features
        self._bandwidth = next((name for name in _BANDWIDTH if name in features), None)
        self._last: dict[str, int] = {}
        self._bytes = 0

    @property
    def counted_bytes(self) -> int:
        """Bytes to and from memory between the first and the last poll."""
        return self._bytes

    def poll(self) -> CacheUse | None:
        """Return the counters; ``None``: the group was removed, or another one has its name.

        :raises MonitorError: a counter's file contains ``Error``, is malformed or cannot be read.
        """
        directory = self._open_present()
        if directory is None:
            return None
        try:
            return self._read(directory)
        except MonitorError:
            # Unless the group was removed while it was read.
            again = self._open_present()
            if again is None:
                return None
            os.close(again)
            raise
        finally:
            os.close(directory)

    def _open_present(self) -> int | None:
        try:
            return self._open()
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise MonitorError(f"{self._group.path}: {error.strerror}") from None

    def _open(self) -> int:
        """Return a descriptor of the group's ``mon_data``; ENOENT if the inode differs."""
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
        complete = self._bandwidth is not None
        for cache in sorted(os.listdir(directory)):
            # Linux 7.0 has other domains beside the caches (mon_PERF_PKG_00).
            if not cache.startswith(_CACHE):
                continue
            if occupancy is not None:
                used = _counter(directory, f"{cache}/{_OCCUPANCY}")
                occupancy = None if used is None else occupancy + used
            if self._bandwidth is not None:
                count = _counter(directory, f"{cache}/{self._bandwidth}")
                complete = complete and count is not None
                self._advance(cache, count)
        return CacheUse(occupancy, self._bytes if complete else None)

    def _advance(self, cache: str, count: int | None) -> None:
        if count is not None:
            self._bytes += max(0, count - self._last.get(cache, count))
            self._last[cache] = count


def group_membership(tids: Iterator[int]) -> Iterator[tuple[int, GroupMembership]]:
    """Yield the groups of those of *tids* that are alive; nothing if resctrl is not mounted.

    The format is that of proc_resctrl_show() in arch/x86/kernel/cpu/resctrl/rdtgroup.c.
    """
    for tid in tids:
        try:
            text = Path(f"/proc/{tid}/cpu_resctrl_groups").read_text(encoding="utf-8")
        except OSError:
            continue
        lines = text.splitlines()
        if len(lines) < 2:
            report_odd("cpu_resctrl_groups", text)
            continue
        control, monitor = (line.partition(":")[2] for line in lines[:2])
        if control:  # empty: resctrl is not mounted
            yield tid, GroupMembership(control.removeprefix("/"), monitor)


def _counter(directory: int, name: str) -> int | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            text = os.read(fd, 64).decode("ascii", "replace").strip()
        finally:
            os.close(fd)
    except OSError as error:
        raise MonitorError(f"{name}: {error.strerror}") from None
    if text.isdecimal():
        return int(text)
    if text in _UNAVAILABLE:
        return None
    raise MonitorError(f"{name}: {text or 'empty'}")
