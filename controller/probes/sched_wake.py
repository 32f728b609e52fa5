# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel's message that a service waits more than its sweet points allow (``wake.h``)."""

from collections.abc import Mapping
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from controller.probes.bpf.compiled import MapSpec, create_map
from controller.probes.bpf.mapped_array import MappedArray
from controller.probes.sched_look import LimitRows

__all__ = ("ALARM", "LIMIT", "WaitAlarm", "no_ring_buffer")

# ``struct limit`` and ``struct alarm``.
LIMIT = np.dtype(
    {
        "names": ["sweet_ns", "seen", "most"],
        "formats": ["i8", ("i8", 2), ("i8", 2)],
        "offsets": [0, 8, 24],
        "itemsize": 64,
    }
)
ALARM = np.dtype([("armed", "u8"), ("told", "u8")])
# Sweet points of a record that the kernel compares with; others are left to looks.
_LIMITS = 2
_RING_BUFFER = 27  # BPF_MAP_TYPE_RINGBUF
_NEVER = np.iinfo(np.int64).max


class WaitAlarm:
    """Has the kernel tell once that a service waits too much. It is not armed at first.

    The file ``fd`` is readable from then on, until the next ``arm`` or ``clear``.
    """

    def __init__(self, fds: Mapping[str, int], records: int) -> None:
        self.fd = fds["wakes"]
        limits = MappedArray(fds["limits"], LIMIT, _LIMITS * records)
        self._limits = limits.values.reshape(records, _LIMITS)
        self._state = MappedArray(fds["alarm"], ALARM, 1).values
        self._rows: LimitRows | None = None
        # The positions of the two sides in the ring, each in a page of its own. What the messages
        # say is not read: the arrays have it.
        self._read = _word(self.fd, 0, mmap.PROT_READ | mmap.PROT_WRITE)
        self._written = _word(self.fd, mmap.PAGESIZE, mmap.PROT_READ)

    @property
    def is_armed(self) -> bool:
        """Whether the kernel would tell."""
        return bool(self._state["armed"][0] != self._state["told"][0])

    def arm(self, rows: LimitRows, left: NDArray[np.float64]) -> None:
        """Have the kernel tell when a service has more waits than *left*, by row, from now on."""
        self.disarm()
        self.clear()
        if rows is not self._rows:
            self._arrange(rows)
        self._limits["most"][self._places] = self._limits["seen"][self._places] + left[self._taken]
        self._state["armed"] = self._state["told"] + np.uint64(1)

    def _arrange(self, rows: LimitRows) -> None:
        """Give each sweet point a place, and those of all other records none."""
        self._rows = rows
        self._limits["sweet_ns"] = self._limits["most"] = _NEVER
        points: dict[int, list[float]] = {}
        places: dict[tuple[int, int, int], int] = {}
        for row, (record, sweet_ns, by_time) in enumerate(
            zip(*(each.tolist() for each in rows), strict=True)
        ):
            known = points.setdefault(record, [])
            if sweet_ns not in known and len(known) < _LIMITS:
                self._limits["sweet_ns"][record, len(known)] = sweet_ns
                known.append(sweet_ns)
            if sweet_ns in known:
                places.setdefault((record, known.index(sweet_ns), int(by_time)), row)
        self._taken = np.array([*places.values()], np.intp)
        self._places = tuple(np.array([*places], np.intp).reshape(-1, 3).T)

    def disarm(self) -> None:
        """Have the kernel tell nothing."""
        self._state["armed"] = self._state["told"]

    def clear(self) -> None:
        """Take what the kernel has told."""
        self._read[0] = self._written[0]


def no_ring_buffer() -> str:
    """Return why the kernel makes no BPF ring buffer, as before Linux 5.8; empty: it makes one."""
    try:
        os.close(create_map("wakes", MapSpec(_RING_BUFFER, 0, 0, mmap.PAGESIZE, 0)))
    except OSError as error:
        return f"no ring buffer: {error}"
    return ""


def _word(fd: int, offset: int, access: int) -> NDArray[np.uint64]:
    memory = mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, access, offset=offset)
    return np.frombuffer(memory, np.uint64, 1)
