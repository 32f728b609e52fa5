# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and disk traffic per workload: ``memory.current`` of v2, which is
``memory.usage_in_bytes`` of v1, and ``io.stat`` of v2, which says too which disks a service uses.

Reading ``io.stat`` makes the kernel sum over all CPUs, so the number of workloads read in a tick is
limited. Of the active workloads up to 250 are read within a second; more take proportionally
longer.
"""

from collections.abc import Collection, Iterable, Iterator
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from controller.core.model import CgroupId, Channel, DiskRequests, QosClass, Workload
from controller.core.settings import Settings
from controller.core.units import NS_PER_SEC
from controller.host.memory import MemoryHierarchy
from controller.host.odd_rows import report_odd
from controller.probes.poll_queue import PollQueue

__all__ = (
    "Usage",
    "UsageMeter",
    "parse_io_bytes",
    "parse_io_requests",
)

_ROUND_NS = NS_PER_SEC
_USAGE_PER_POLL = 50
_MEMORY_FILES = {"v1": "memory.usage_in_bytes", "v2": "memory.current"}


class Usage(NamedTuple):
    """Bytes charged to a workload now, and bytes it read and wrote; ``None``: not available.

    Traffic through stacked devices (dm, md) counts once on each of them. ``requests_by_disk`` is
    known for services whose profile has an indicator of disks.
    """

    memory_bytes: int | None
    io_bytes: int | None
    requests_by_disk: tuple[DiskRequests, ...] | None = None


class UsageMeter:
    """The usage of workloads; empty without the memory and io controllers.

    ``workloads`` are the last readings; ``changed`` are the workloads whose values the last
    ``poll`` found changed.

    :param unified: the mount of the cgroup2 tree; ``None``: no tree.
    :param memory: the hierarchy of the memory controller, with the same paths.
    """

    def __init__(self, unified: Path | None, memory: MemoryHierarchy) -> None:
        self._unified = str(unified or "")
        controllers = set()
        if unified is not None:
            with contextlib.suppress(OSError):
                controllers = set((unified / "cgroup.controllers").read_text().split())
        has_memory = memory.version == "v1" or "memory" in controllers
        self._memory = memory.mount if has_memory else None
        self._memory_file = _MEMORY_FILES[memory.version]
        self._has_io = "io" in controllers
        self._all: tuple[Workload, ...] = ()
        self._paths: dict[CgroupId, str] = {}
        # The profiles that have an indicator of disks, and their services.
        self._asking: frozenset[str] = frozenset()
        self._by_disk: frozenset[CgroupId] = frozenset()
        self._queue = PollQueue()
        self._round: list[CgroupId] = []
        self._round_due_ns = 0
        self.workloads: dict[CgroupId, Usage] = {}
        self.changed: Collection[CgroupId] = ()

    def reconfigure(self, settings: Settings) -> None:
        """Count the requests to each disk of services whose profile has an indicator of disks."""
        self._asking = frozenset(
            name
            for name, profile in settings.profiles.items()
            if any(spec.channel is Channel.IO for spec in profile.indicators)
        )
        self.set_workloads(self._all)

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Read *workloads* from now on, and no others."""
        self._all = tuple(workloads)
        self._by_disk = frozenset(
            w.cgroup for w in self._all if w.qos is QosClass.LS and w.profile in self._asking
        )
        is_used = self._memory is not None or self._has_io
        self._paths = {w.cgroup: w.path for w in self._all} if is_used else {}
        self._queue.set_cgroups(self._paths)
        self._round = [cgroup for cgroup in self._round if cgroup in self._paths]
        self.workloads = {c: u for c, u in self.workloads.items() if c in self._paths}

    def poll(self, now_ns: int, active: Iterable[CgroupId] | None) -> None:
        """Update up to 50 of ``workloads``.

        :param active: workloads with CPU time, waits or traffic since the last call; ``None`` if
            unknown. The others are read in rotation: see ``PollQueue``.
        """
        self._queue.mark_active(active)
        if not self._round and now_ns >= self._round_due_ns:
            self._round_due_ns = now_ns + _ROUND_NS
            self._round = self._queue.due()
        part, self._round = self._round[:_USAGE_PER_POLL], self._round[_USAGE_PER_POLL:]
        self.changed = [cgroup for cgroup in part if self._has_changed(cgroup)]
        self._queue.mark_active(self.changed)

    def _has_changed(self, cgroup: CgroupId) -> bool:
        path, mount = self._paths[cgroup], self._memory
        memory = None if mount is None else _text(f"{mount}{path}/{self._memory_file}")
        io = _text(f"{self._unified}{path}/io.stat") if self._has_io else None
        now = Usage(
            memory_bytes=None if memory is None else _bytes(memory),
            io_bytes=None if io is None else parse_io_bytes(io),
            requests_by_disk=(
                None if io is None or cgroup not in self._by_disk else parse_io_requests(io)
            ),
        )
        before, self.workloads[cgroup] = self.workloads.get(cgroup), now
        return now != before


def parse_io_bytes(text: bytes) -> int:
    """Return the sum of bytes read and written over all devices in a text of ``io.stat``.

    A row with another value than a number is left out. The name of a device is not looked at: it
    is ``(unknown)`` for one that was removed while it was in use.

    >>> parse_io_bytes(b"8:0 rbytes=4096 wbytes=512 rios=1 wios=1 dbytes=9 dios=1\\n")
    4608
    """
    return sum(count for _, count in _rows(text, (b"rbytes", b"wbytes")))


def parse_io_requests(text: bytes) -> tuple[DiskRequests, ...]:
    """Return the reads and writes to each disk in a text of ``io.stat``, of those with any.

    Requests are counted, because of a stacked disk that changes the disk of a request (md raid0,
    multipath) the kernel counts bytes once, on the upper one (blk_cgroup_bio_start in
    block/blk-cgroup.c).

    >>> parse_io_requests(b"8:0 rbytes=4096 rios=1 wios=2\\n8:16 rios=0\\n(unknown) rios=7\\n")
    (DiskRequests(disk='8:0', requests=3),)
    """
    return tuple(
        DiskRequests(disk.decode("ascii"), count)
        for disk, count in _rows(text, (b"rios", b"wios"))
        if count and disk.replace(b":", b"").isdigit()
    )


def _rows(text: bytes, keys: tuple[bytes, bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield the device and the sum of *keys* of each row of ``io.stat``."""
    for row in text.splitlines():
        device, _, rest = row.partition(b" ")
        words = (word.partition(b"=") for word in rest.split())
        counts = [count for key, _, count in words if key in keys]
        if all(map(bytes.isdigit, counts)):
            yield device, sum(map(int, counts))
        else:
            report_odd("io.stat", row)


def _bytes(text: bytes) -> int | None:
    if text.strip().isdigit():
        return int(text)
    report_odd("memory.current", text)
    return None


def _text(path: str) -> bytes | None:
    # None: the cgroup was removed, or the controller is not enabled for it.
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(fd, 65536)
    except OSError:
        return None
    finally:
        os.close(fd)
