# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which disks services use: only on these can best-effort work make them wait."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from controller.core.model import CgroupId, DiskRequests, WorkloadSample
from controller.core.units import NS_PER_SEC

__all__ = ("DisksInUse",)

# A service uses a disk for so long after its last request was counted. The counts are read once a
# second, and a service that waits for a disk sends requests to it.
_RECENT_NS = 10 * NS_PER_SEC


@dataclass(slots=True)
class DisksInUse:
    """The disks (``MAJOR:MINOR``) that each workload used recently, stacked ones included."""

    _counts: dict[CgroupId, tuple[DiskRequests, ...]] = field(default_factory=dict)
    _used_ns: dict[CgroupId, dict[str, int]] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether the requests of any workload are counted."""
        return bool(self._counts)

    def update(self, samples: Iterable[WorkloadSample], now_ns: int) -> None:
        """Take the counts of all workloads."""
        before, self._counts = self._counts, {}
        used, self._used_ns = self._used_ns, {}
        for sample in samples:
            counts = sample.requests_by_disk
            if counts is None:
                continue
            cgroup = sample.cgroup
            self._counts[cgroup] = counts
            self._used_ns[cgroup] = used.get(cgroup, {})
            last = before.get(cgroup)
            if last is not None and last is not counts:
                known = dict(last)
                grown = (disk for disk, count in counts if count > known.get(disk, 0))
                self._used_ns[cgroup] |= dict.fromkeys(grown, now_ns)

    def of(self, cgroups: Iterable[CgroupId], now_ns: int) -> frozenset[str]:
        """Return the disks that *cgroups* used recently; empty: none, or they are not measured."""
        return frozenset(
            disk
            for cgroup in cgroups
            for disk, used_ns in self._used_ns.get(cgroup, {}).items()
            if now_ns - used_ns < _RECENT_NS
        )
