# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The time of requests to disks, and what the disks work for, from ``bpf/disk.bpf.c``.

Requests belong to cgroups of the io controller: of the cgroup2 tree, or of ``blkio`` on v1. There a
workload's cgroup is the one with the same path. The wait of a request begins when the kernel makes
it: a task that waits before, because the queue is full or for a limit of its own, is not counted.
"""

from typing import NamedTuple

import numpy as np

from controller.core.model import QosClass, Workload
from controller.host.facts import CgroupLayout, HostError, find_cgroup_layout, find_controller
from controller.probes.bpf.btf import Btf, BtfError, ancestor_offsets
from controller.probes.bpf.libbpf import HashMap, RunTime, run_time
from controller.probes.bpf.loader import LoadError, ProgramSpec, load
from controller.probes.bpf.mapped_array import MappedArray
from controller.probes.tree_counters import TreeCounters

__all__ = ("DiskProbe", "DiskUse", "trial")

# Disks whose queue has a higher number are not measured. One takes 64 bytes.
_MAX_DISKS = 2048


class DiskUse(NamedTuple):
    """Requests of a workload since it was assigned.

    ``disk_requests`` counts reads and those writes for which a task waits, ``disk_wait_ns`` is
    their time from begin to completion, ``disk_inflicted_ns`` the part of it in which the disk
    worked for best-effort, 0 for best-effort itself.
    """

    disk_requests: int
    disk_wait_ns: int
    disk_inflicted_ns: int


_COUNTS = np.dtype([("count", "u8", len(DiskUse._fields))])


class DiskProbe(TreeCounters[DiskUse]):
    """The loaded probe.

    :param layout: the hierarchies of this host.
    :param max_slots: maximum number of workloads; further ones wait for a free slot.
    :raises LoadError: no hierarchy has an io controller, or the program cannot be loaded.
    :raises BtfError: the kernel's BTF lacks a struct or member that the program reads.
    """

    def __init__(self, layout: CgroupLayout, *, max_slots: int = 1024) -> None:
        version, mount = find_controller("blkio", layout.unified)
        if mount is None:
            raise LoadError("disk.bpf.c: no hierarchy with the io controller is mounted")
        self._loaded = load(_spec(max_slots))
        fds = self._loaded.map_fds
        counts = MappedArray(fds["requests"], _COUNTS, max_slots).values["count"]
        super().__init__(
            str(mount),
            "v2" if version == "v2" else "blkio",
            HashMap(fds["slot_of_cgroup"]),
            counts.reshape(1, max_slots, len(DiskUse._fields)),
            DiskUse,
            _is_best_effort,
        )

    @property
    def cost(self) -> RunTime | None:
        """The probe's runs and run time so far; ``None`` unless kernel.bpf_stats_enabled is 1."""
        return run_time(self._loaded.link_fds)

    def close(self) -> None:
        """Detach the probe."""
        self._loaded.close()


def _is_best_effort(workload: Workload) -> int:
    return int(workload.qos is QosClass.BE)


def _spec(max_slots: int) -> ProgramSpec:
    btf = Btf()
    return ProgramSpec(
        source="disk.bpf.c",
        defines={
            "MAX_SLOTS": max_slots,
            "MAX_DISKS": _MAX_DISKS,
            "OFF_REQUEST_START": btf.offset("request", "start_time_ns"),
            "OFF_REQUEST_BIO": btf.offset("request", "bio"),
            "OFF_REQUEST_LENGTH": btf.offset("request", "__data_len"),
            "OFF_REQUEST_QUEUE": btf.offset("request", "q"),
            "OFF_QUEUE_ID": btf.offset("request_queue", "id"),
            "OFF_REQUEST_FLAGS": btf.offset("request", "cmd_flags"),
            "OFF_BIO_BLKG": btf.offset("bio", "bi_blkg"),
            "OFF_BLKG_BLKCG": btf.offset("blkcg_gq", "blkcg"),
            "OFF_CSS_CGROUP": btf.offset("blkcg", "css.cgroup"),
            **ancestor_offsets(btf),
        },
        maps=("slot_of_cgroup", "disks", "requests"),
        tracepoint="block_rq_complete",
    )


def trial() -> tuple[bool, str]:
    """Load the probe once and return (success, detail), for ``sweetpoint doctor``."""
    try:
        layout = find_cgroup_layout()
        DiskProbe(layout, max_slots=8).close()
    except (HostError, BtfError, LoadError, OSError) as error:
        return False, str(error)
    _, mount = find_controller("blkio", layout.unified)
    return True, f"compiled, loaded and attached, for cgroups of {mount}"
