# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel's message that the pressure of a service passes a sweet point.

A trigger is a text in a pressure file of a cgroup: so much stall within a window. The kernel tells
at most once per window, and drops the trigger with the open file (Documentation/accounting/psi.rst,
kernel/sched/psi.c). It counts over the window of the indicator, so that it tells when the indicator
passes its sweet point. It looks ten times in a window. If the agent has no CAP_SYS_RESOURCE, it
looks once in two seconds, and refuses windows that are no multiple of that.

The limits are those of a look, at the sweet points of the present load (``core/looks.py``). Learned
ones change with each window, so a trigger follows only if it is far off, and slowly.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import errno
from itertools import islice
import os
from pathlib import Path
import select
from typing import NamedTuple

from controller.core.looks import PressureLimit
from controller.core.model import CgroupId, IndicatorName, QosClass, Workload
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.host.facts import kernel_version

__all__ = ("PressureAlarm",)

_FILES = {
    IndicatorName.PSI_CPU: "cpu.pressure",
    IndicatorName.PSI_MEMORY: "memory.pressure",
    IndicatorName.PSI_IO: "io.pressure",
}
# WINDOW_MIN_US (none since 6.3) and WINDOW_MAX_US in kernel/sched/psi.c.
_SHORTEST_NS, _LONGEST_NS = 500 * NS_PER_MS, 10 * NS_PER_SEC
# The cgroups of all triggers have a kernel thread each. To close a trigger takes 9 ms (Linux 6.18,
# two CPUs), as the kernel waits for RCU, and 0.01 ms if its cgroup was removed.
_MOST = 100
# A trigger is replaced if its stall is off by this part. It only causes the tick that reads the
# pressure, and that tick compares with the exact sweet point.
_FAR = 0.1
# One is replaced in this time, of all: 9 ms of a second, in which the control thread sleeps.
_PAUSE_NS = 1 * NS_PER_SEC
# Before, the kernel used the memory of a polled trigger after its cgroup was removed: commits
# c2dbe32d5db5 (epoll) and aff037078eca.
_SAFE = (6, 5)
_DEAD = select.EPOLLERR | select.EPOLLHUP


class _File(NamedTuple):
    cgroup: CgroupId
    path: str


class _Trigger(NamedTuple):
    stall_us: int
    window_us: int

    @property
    def text(self) -> str:
        return f"some {self.stall_us} {self.window_us}"

    def is_far_from(self, other: "_Trigger") -> bool:
        """Whether this trigger has to be made in place of *other*."""
        off = abs(self.stall_us - other.stall_us) > _FAR * other.stall_us
        return off or self.window_us != other.window_us


class PressureAlarm:
    """Has the kernel tell of pressure. Nothing is open before the first ``arm``.

    :param unified: the mount of the cgroup2 tree; ``None``: no tree, and so no trigger.
    :param tell: called with the reason for each trigger that the kernel refuses.
    """

    def __init__(
        self,
        unified: Path | None,
        tell: Callable[[str], None],
        kernel: tuple[int, int] | None = None,
    ) -> None:
        self._unified, self._tell = unified, tell
        self._kernel = kernel or kernel_version()
        self._paths: dict[CgroupId, str] = {}
        self._limits: Sequence[PressureLimit] = ()
        self._wanted: dict[_File, _Trigger] = {}
        # What the kernel was asked for, refused ones too. The last one that was replaced is last.
        self._asked: dict[_File, _Trigger] = {}
        self._open: dict[_File, int] = {}
        self._epoll: select.epoll | None = None
        # Whether files may be missing, and whether a trigger may be far off.
        self._is_stale = self._is_off = False
        self._replace_ns = 0
        self._is_armed = self._has_fired = False

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Follow the services among *workloads* from the next ``arm`` on, with 100 triggers."""
        self._paths = {each.cgroup: each.path for each in workloads if each.qos is QosClass.LS}
        self._is_stale = True

    def arm(self, limits: Sequence[PressureLimit], now_ns: int) -> None:
        """Let ``fd`` become readable once, for the next message that *limits* are exceeded."""
        if self._is_stale or limits != self._limits:
            self._limits, before = limits, self._wanted
            self._wanted = dict(islice(self._triggers(), _MOST))
            self._is_off = True
            if self._is_stale or self._wanted.keys() != before.keys():
                self._is_stale = False
                self._renew()
        if self._is_off:
            self._replace(now_ns)
        self._is_armed = True

    def _triggers(self) -> Iterator[tuple[_File, _Trigger]]:
        for cgroup, indicator, ratio, window_ns in self._limits:
            if cgroup in self._paths and self._unified is not None:
                path = f"{self._unified}{self._paths[cgroup]}/{_FILES[indicator]}"
                window_us = min(max(window_ns, _SHORTEST_NS), _LONGEST_NS) // 1000
                yield _File(cgroup, path), _Trigger(round(ratio * window_us), window_us)

    @property
    def fd(self) -> int | None:
        """The file that is readable after a message; ``None``: there is none, or not now."""
        return self._epoll.fileno() if self._epoll and self._open and self._is_armed else None

    def hear(self) -> None:
        """Take that ``fd`` was readable.

        To ask whether it is takes the message away (psi_trigger_poll in kernel/sched/psi.c), so
        that no file has it any more. Only a removed cgroup is still seen.
        """
        self._is_armed = False
        self._drain(told=True)

    @property
    def has_fired(self) -> bool:
        """Whether a message came since the last ``take``."""
        self._drain()
        return self._has_fired

    def take(self) -> bool:
        """Return whether a message came since the last call."""
        fired, self._has_fired = self.has_fired, False
        return fired

    def close(self) -> None:
        """Close all triggers, until the next ``arm``."""
        self._close([*self._asked])
        if self._epoll is not None:
            self._epoll.close()
        self._epoll = None
        self._is_stale, self._is_armed, self._has_fired = True, False, False

    def _drain(self, *, told: bool = False) -> None:
        events = self._epoll.poll(0) if self._epoll is not None else []
        dead = {fd for fd, event in events if event & _DEAD}
        if dead:
            self._close([file for file, fd in self._open.items() if fd in dead])
            self._is_stale = True
        self._has_fired |= len(events) > len(dead) or (told and not events)

    def _renew(self) -> None:
        """Have a trigger in each file that is wanted, and none in others."""
        self._close([file for file in self._asked if file not in self._wanted])
        if self._wanted and self._kernel < _SAFE:
            self._tell("not safe before Linux {}.{}".format(*_SAFE))
            return
        for file, trigger in self._wanted.items():
            if file not in self._asked:
                self._make(file, trigger)

    def _replace(self, now_ns: int) -> None:
        """Replace a trigger that is far off, if the last one was replaced long enough ago."""
        off = (file for file, asked in self._asked.items() if self._wanted[file].is_far_from(asked))
        file = next(off, None)
        self._is_off = file is not None
        if file is not None and now_ns >= self._replace_ns:
            self._replace_ns = now_ns + _PAUSE_NS
            self._close([file])
            self._make(file, self._wanted[file])

    def _make(self, file: _File, trigger: _Trigger) -> None:
        try:
            self._open[file] = self._armed_file(file.path, trigger.text)
        except (FileNotFoundError, NotADirectoryError):
            return  # the kernel has no PSI, or the cgroup is gone
        except OSError as error:
            if error.errno == errno.ENODEV:  # removed since it was opened
                return
            self._tell(f"{Path(file.path).name}: {error.strerror}")
        self._asked[file] = trigger

    def _armed_file(self, path: str, text: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(fd, text.encode())
            self._epoll = self._epoll or select.epoll()
            self._epoll.register(fd, select.EPOLLPRI)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _close(self, files: Iterable[_File]) -> None:
        for file in files:
            del self._asked[file]
            fd = self._open.pop(file, None)
            if fd is None:  # it was refused
                continue
            if self._epoll is not None:
                self._epoll.unregister(fd)  # a forked child may keep the file open
            os.close(fd)
