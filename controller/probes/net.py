# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""IP bytes and packets per workload in both directions, from ``bpf/net.bpf.c``.

Packets belong to cgroups of the cgroup2 tree. If the cpu controller is on v1, a workload's
cgroup2 directory is the one with the same path; a workload without one is not measured. A packet
is counted as IP passes it on: with segmentation offload it has up to 64 KiB and its headers count
once, so the wire carries up to 4 % more.
"""

from typing import NamedTuple

import numpy as np

from controller.host.facts import CgroupLayout, HostError, find_cgroup_layout, possible_cpus
from controller.probes.bpf.libbpf import HashMap, RunTime, run_time
from controller.probes.bpf.loader import LoadError, ProgramSpec, load
from controller.probes.bpf.mapped_array import MappedArray
from controller.probes.tree_counters import TreeCounters

__all__ = ("NetProbe", "Traffic", "trial")

_INGRESS, _EGRESS = 0, 1  # enum bpf_attach_type: BPF_CGROUP_INET_INGRESS, BPF_CGROUP_INET_EGRESS


class Traffic(NamedTuple):
    """IP traffic that a workload sent and received since it was assigned."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int


_COUNTS = np.dtype([("count", "u8", len(Traffic._fields))])


class NetProbe(TreeCounters[Traffic]):
    """The loaded probe.

    :param layout: gives the mount of the cgroup2 tree.
    :param cpus: possible CPUs of the machine.
    :param max_slots: maximum number of workloads; further ones wait for a free slot.
    :raises LoadError: there is no cgroup2 tree, or the program cannot be loaded or attached.
    """

    def __init__(self, layout: CgroupLayout, *, cpus: int, max_slots: int = 1024) -> None:
        if layout.unified is None:
            raise LoadError(
                "no cgroup2 tree is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
            )
        self._loaded = load(
            ProgramSpec(
                source="net.bpf.c",
                defines={"NCPU": cpus, "MAX_SLOTS": max_slots},
                maps=("slot_of_cgroup", "traffic"),
                cgroup_skb={"count_tx": _EGRESS, "count_rx": _INGRESS},
                cgroup=str(layout.unified),
                typed=False,
            )
        )
        fds = self._loaded.map_fds
        counts = MappedArray(fds["traffic"], _COUNTS, cpus * max_slots).values["count"]
        table = counts.reshape(cpus, max_slots, len(Traffic._fields))
        super().__init__(str(layout.unified), "v2", HashMap(fds["slot_of_cgroup"]), table, Traffic)

    @property
    def cost(self) -> RunTime | None:
        """The probe's runs and run time so far; ``None`` unless kernel.bpf_stats_enabled is 1."""
        return run_time(self._loaded.link_fds)

    def close(self) -> None:
        """Detach the probe."""
        self._loaded.close()


def trial() -> tuple[bool, str]:
    """Load the probe once and return (success, detail), for ``sweetpoint doctor``."""
    try:
        layout = find_cgroup_layout()
        NetProbe(layout, cpus=max(possible_cpus()) + 1, max_slots=8).close()
    except (HostError, LoadError, OSError) as error:
        return False, str(error)
    return True, f"compiled, loaded and attached at {layout.unified}"
