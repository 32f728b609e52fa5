# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tasks that joined or left the cgroups of workloads, from ``bpf/members.bpf.c``.

A task inherits per-task attributes (core-scheduling cookie, resctrl group) from its parent and
keeps them when it is moved to another cgroup. A component that keeps such attributes in line with
cgroups therefore needs the moves, and the tasks that were created in another cgroup than their
parent's.

Events only save scans and do not replace them: they may be lost, and there are none from before
the probe was loaded.
"""

from collections.abc import Iterable
import ctypes
import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from controller.core.model import CgroupId, Workload
from controller.host.facts import CgroupLayout
from controller.probes.bpf.btf import Btf, ancestor_offsets
from controller.probes.bpf.libbpf import HashMap, libbpf
from controller.probes.bpf.loader import LoadError, ProgramSpec, load
from controller.probes.bpf.mapped_array import MappedArray

__all__ = ("Move", "MoveProbe", "Moves", "moves_spec")

# 64 KiB, some 2,000 moves between two polls. With more moves a scan is cheaper.
_RING_PAGES = 16
_MAX_FOLLOWED = 1024
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Move(NamedTuple):
    """A task that is now in another cgroup than before, or than its parent.

    ``cgroup`` is the followed workload the task is in now, ``None`` if there is none. With
    ``whole`` all threads of the process ``tgid`` moved, otherwise ``tid`` alone. Ids are those of
    the initial process-id namespace.
    """

    cgroup: CgroupId | None
    tid: int
    tgid: int
    whole: bool


class Moves(NamedTuple):
    """All moves since the last poll, in order; if not ``complete``, some are missing: scan."""

    moves: tuple[Move, ...]
    complete: bool


class _Event(ctypes.Structure):
    _fields_ = (
        ("cgroup", ctypes.c_uint64),
        ("tid", ctypes.c_uint32),
        ("tgid", ctypes.c_uint32),
        ("whole", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    )


class MoveProbe:
    """The loaded probe.

    :param layout: the hierarchy whose cgroups are followed.
    :param max_followed: number of cgroups that can be followed; with more, no result is complete.
    :raises LoadError: the program cannot be loaded, or libbpf cannot map its ring buffer.
    :raises BtfError: the kernel's BTF lacks a struct or member that the program reads.
    """

    def __init__(self, layout: CgroupLayout, *, max_followed: int = _MAX_FOLLOWED) -> None:
        self._hierarchy = layout.hierarchy
        self._loaded = load(moves_spec(layout, max_followed))
        fds = self._loaded.map_fds
        self._lost = MappedArray(fds["lost"], np.dtype("u8"), 1)
        self._lost_seen = 0
        self._map = HashMap(fds["followed"])
        self._max_followed = max_followed
        self._followed: set[CgroupId] = set()
        self._unfollowed = False
        self._complete = False  # moves from before the load are unknown
        self._moves: list[Move] = []
        self._callback = _CALLBACK(self._on_event)  # must live as long as the ring
        self._libbpf = libbpf()
        self._libbpf.ring_buffer__new.restype = ctypes.c_void_p
        self._libbpf.ring_buffer__consume.argtypes = (ctypes.c_void_p,)
        self._libbpf.ring_buffer__free.argtypes = (ctypes.c_void_p,)
        self._ring = self._libbpf.ring_buffer__new(fds["events"], self._callback, None, None)
        if not self._ring:
            self._loaded.close()
            error = os.strerror(ctypes.get_errno())
            raise LoadError(f"members.bpf.c: libbpf cannot map the ring buffer: {error}")

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Report moves into and out of *workloads* from now on, and of no others.

        Tasks that a new workload has already are not reported.
        """
        wanted = {w.cgroup for w in workloads}
        for cgroup in self._followed - wanted:
            self._map.delete(cgroup.id)
        self._followed &= wanted
        for cgroup in sorted(wanted - self._followed)[: self._max_followed - len(self._followed)]:
            self._map.set(cgroup.id, 0, 0)
            self._followed.add(cgroup)
        self._unfollowed = bool(wanted - self._followed)

    def poll(self) -> Moves:
        """Return the moves since the last call.

        :raises OSError: the ring buffer cannot be read.
        """
        consumed = self._libbpf.ring_buffer__consume(self._ring)
        if consumed < 0:
            raise OSError(-consumed, "cannot read the ring buffer of members.bpf.c")
        lost = int(self._lost.values[0])
        complete = self._complete and lost == self._lost_seen and not self._unfollowed
        self._lost_seen, self._complete = lost, True
        moves, self._moves = tuple(self._moves), []
        return Moves(moves, complete)

    def close(self) -> None:
        """Detach the probe; may be called more than once."""
        if self._ring:
            self._libbpf.ring_buffer__free(self._ring)
            self._ring = None
        self._loaded.close()

    def _on_event(self, _context: int | None, data: int, _size: int) -> int:
        event = _Event.from_address(data)
        cgroup = CgroupId(self._hierarchy, event.cgroup)
        # The set may have changed between the event and this poll.
        known = cgroup if cgroup in self._followed else None
        self._moves.append(Move(known, event.tid, event.tgid, bool(event.whole)))
        return 0


def moves_spec(layout: CgroupLayout, max_followed: int = _MAX_FOLLOWED) -> ProgramSpec:
    """Return what ``MoveProbe`` loads.

    :raises LoadError: /proc/cgroups does not list the hierarchy.
    :raises BtfError: the kernel's BTF lacks a struct or member that the program reads.
    """
    btf = Btf()
    return ProgramSpec(
        source="members.bpf.c",
        defines={
            "PAGE_SIZE": mmap.PAGESIZE,
            "RING_PAGES": _RING_PAGES,
            "MAX_FOLLOWED": max_followed,
            "HIERARCHY": _hierarchy_number(layout),
            "OFF_CSS_CGROUP": btf.offset("cgroup_subsys_state", "cgroup"),
            "OFF_CGROUP_SELF": btf.offset("cgroup", "self"),
            "OFF_CGROUP_ROOT": btf.offset("cgroup", "root"),
            "OFF_ROOT_HIERARCHY": btf.offset("cgroup_root", "hierarchy_id"),
            "OFF_TASK_PID": btf.offset("task_struct", "pid"),
            "OFF_TASK_TGID": btf.offset("task_struct", "tgid"),
            "OFF_TASK_GROUP": btf.offset("task_struct", "sched_task_group"),
            **ancestor_offsets(btf),
        },
        maps=("followed", "lost", "events"),
        typed=False,
    )


def _hierarchy_number(layout: CgroupLayout) -> int:
    """Return the kernel's number of the hierarchy; 0 is the cgroup2 tree.

    :raises LoadError: /proc/cgroups does not list the hierarchy.
    """
    if layout.version == "v2":
        return 0
    for line in Path("/proc/cgroups").read_text(encoding="ascii").splitlines():
        name, number, *_ = line.split()
        if name == layout.hierarchy:
            return int(number)
    raise LoadError(f"members.bpf.c: /proc/cgroups does not list {layout.hierarchy}")
