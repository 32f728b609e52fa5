# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel's message that the pressure of a service passes a sweet point.

A trigger is a text in a pressure file of a cgroup: so much stall within a window. The kernel tells
at most once per window, and drops the trigger with the open file (Documentation/accounting/psi.rst,
kernel/sched/psi.c). It counts over the window of the indicator, so that it tells when the indicator
passes its sweet point. It looks ten times in a window. If the agent has no CAP_SYS_RESOURCE, it
looks once in two seconds, and refuses windows that are no multiple of that.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
import errno
from itertools import islice
import os
from pathlib import Path
import select
from typing import NamedTuple

from controller.core.model import CgroupId, IndicatorName, QosClass, Workload
from controller.core.settings import Settings
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
# Before, the kernel used the memory of a polled trigger after its cgroup was removed: commits
# c2dbe32d5db5 (epoll) and aff037078eca.
_SAFE = (6, 5)
_DEAD = select.EPOLLERR | select.EPOLLHUP


class _Trigger(NamedTuple):
    cgroup: CgroupId
    path: str
    text: str


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
        self._profiles: dict[str, list[tuple[str, str]]] = {}
        self._workloads: tuple[Workload, ...] = ()
        self._wanted: Collection[_Trigger] = ()
        self._refused: set[_Trigger] = set()
        self._open: dict[_Trigger, int] = {}
        self._epoll: select.epoll | None = None
        self._is_stale = self._is_armed = self._has_fired = False

    def reconfigure(self, settings: Settings) -> None:
        """Take the sweet points of pressure in the profiles of *settings*."""
        self._profiles = {
            name: [
                (_FILES[spec.name], _trigger_text(spec.sweet_point, spec.window_ns))
                for spec in profile.indicators
                if spec.name in _FILES and spec.sweet_point is not None
            ]
            for name, profile in settings.profiles.items()
        }
        self.set_workloads(self._workloads)

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Follow the services among *workloads* from the next ``arm`` on, with 100 triggers."""
        self._workloads = tuple(workloads)
        self._wanted = dict.fromkeys(islice(self._triggers(), _MOST))
        self._is_stale = True

    def _triggers(self) -> Iterator[_Trigger]:
        for each in self._workloads:
            if each.qos is QosClass.LS and self._unified is not None:
                for file, text in self._profiles.get(each.profile, ()):
                    yield _Trigger(each.cgroup, f"{self._unified}{each.path}/{file}", text)

    def arm(self) -> None:
        """Let ``fd`` become readable once, for the next message."""
        if self._is_stale:
            self._is_stale = False
            self._renew()
        self._is_armed = True

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
        self._close([*self._open])
        if self._epoll is not None:
            self._epoll.close()
        self._epoll = None
        self._is_stale, self._is_armed, self._has_fired = True, False, False

    def _drain(self, *, told: bool = False) -> None:
        events = self._epoll.poll(0) if self._epoll is not None else []
        dead = {fd for fd, event in events if event & _DEAD}
        if dead:
            self._close([trigger for trigger, fd in self._open.items() if fd in dead])
            self._is_stale = True
        self._has_fired |= len(events) > len(dead) or (told and not events)

    def _renew(self) -> None:
        self._close([trigger for trigger in self._open if trigger not in self._wanted])
        if self._wanted and self._kernel < _SAFE:
            self._tell("not safe before Linux {}.{}".format(*_SAFE))
            return
        self._refused.intersection_update(self._wanted)
        for trigger in self._wanted:
            if trigger not in self._open and trigger not in self._refused:
                self._make(trigger)

    def _make(self, trigger: _Trigger) -> None:
        try:
            self._open[trigger] = self._armed_file(trigger)
        except (FileNotFoundError, NotADirectoryError):
            return  # the kernel has no PSI, or the cgroup is gone
        except OSError as error:
            if error.errno != errno.ENODEV:  # removed since it was opened
                self._refused.add(trigger)
                self._tell(f"{Path(trigger.path).name}: {error.strerror}")

    def _armed_file(self, trigger: _Trigger) -> int:
        fd = os.open(trigger.path, os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(fd, trigger.text.encode())
            self._epoll = self._epoll or select.epoll()
            self._epoll.register(fd, select.EPOLLPRI)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _close(self, triggers: Iterable[_Trigger]) -> None:
        for trigger in triggers:
            fd = self._open.pop(trigger)
            if self._epoll is not None:
                self._epoll.unregister(fd)  # a forked child may keep the file open
            os.close(fd)


def _trigger_text(sweet_point: float, window_ns: int) -> str:
    window_us = min(max(window_ns, _SHORTEST_NS), _LONGEST_NS) // 1000
    return f"some {round(sweet_point * window_us)} {window_us}"
