# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What services lack memory for: pages that they read again, and hits of their own limits.

A refault is a page that a cgroup reads or maps again after the kernel had dropped it to make room
(workingset_refault in mm/workingset.c). v2 counts the hits of the limits of a cgroup and of those
below it in memory.events. v1 counts them for each cgroup in memory.failcnt (page_counter_try_charge
in mm/page_counter.c): the limit of a container is that of the service as well, so the cgroups
directly below are read too. The kernel sums memory.stat over all CPUs and descendants, which takes
20 us in the median. So only services are read whose profile asks for it, once a second. The hits of
v1 take 70 us with two containers. They explain refaults and nothing else there, as v1 has no
pressure of a cgroup, so they are read when the refaults have changed.
"""

from collections.abc import Collection, Iterable
import os
import re
from typing import NamedTuple

from controller.core.model import CgroupId, IndicatorName, QosClass, Workload
from controller.core.settings import Settings
from controller.host.memory import MemoryHierarchy, cgroup_text
from controller.probes.poll_queue import PollQueue

__all__ = ("Strain", "StrainMeter", "parse_limit_hits", "parse_refaults")

_ASKING = frozenset({IndicatorName.PSI_MEMORY, IndicatorName.REFAULTS})
_MAX_WORKLOADS = 200
# Since 5.9 file and anonymous pages apart; the rows total_* of v1 are with the cgroups below.
_REFAULTS = re.compile(rb"^(total_)?workingset_refault(?:_anon|_file)? ([0-9]+)$", re.MULTILINE)
_HITS = re.compile(rb"^(?:high|max) ([0-9]+)$", re.MULTILINE)


class Strain(NamedTuple):
    """Pages that a service read again, and hits of its own limits; ``None``: not available."""

    refaults: int | None
    memory_limit_hits: int | None


class StrainMeter:
    """The strain of the services whose profile has an indicator of memory, at most 200.

    ``workloads`` are the last readings; ``changed`` are the workloads whose values the last
    ``poll`` found changed.
    """

    def __init__(self, memory: MemoryHierarchy) -> None:
        version, mount = memory
        self._mount = None if mount is None else str(mount)
        self._is_v2 = version == "v2"
        self._asking: frozenset[str] = frozenset()
        self._all: tuple[Workload, ...] = ()
        self._paths: dict[CgroupId, str] = {}
        self._queue = PollQueue()
        self._read_ns: int | None = None
        self.workloads: dict[CgroupId, Strain] = {}
        self.changed: Collection[CgroupId] = ()

    def reconfigure(self, settings: Settings) -> None:
        """Read the services of the profiles that have an indicator of memory."""
        self._asking = frozenset(
            name
            for name, profile in settings.profiles.items()
            if any(spec.name in _ASKING for spec in profile.indicators)
        )
        self.set_workloads(self._all)

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Read the services among *workloads* from the next ``poll`` on."""
        self._all = tuple(workloads)
        asking = [w for w in self._all if w.qos is QosClass.LS and w.profile in self._asking]
        mount = self._mount
        self._paths = {w.cgroup: f"{mount}{w.path}" for w in asking[:_MAX_WORKLOADS] if mount}
        self._queue.set_cgroups(self._paths)
        self.workloads = {c: strain for c, strain in self.workloads.items() if c in self._paths}

    def poll(self, read_ns: int | None, active: Iterable[CgroupId] | None) -> None:
        """Update ``workloads`` if *read_ns*, the time of the readings, is another than before.

        :param active: as of ``PressureMeter.poll``.
        """
        self._queue.mark_active(active)
        self.changed = ()
        if read_ns == self._read_ns:
            return
        self._read_ns = read_ns
        self.changed = [cgroup for cgroup in self._queue.due() if self._has_changed(cgroup)]
        self._queue.mark_active(self.changed)

    def _has_changed(self, cgroup: CgroupId) -> bool:
        folder = self._paths[cgroup]
        refaults = parse_refaults(cgroup_text(f"{folder}/memory.stat"))
        before = self.workloads.get(cgroup)
        if not self._is_v2 and before is not None and refaults == before.refaults:
            return False
        hits = _hits_v2(folder) if self._is_v2 else _hits_v1(folder)
        now = self.workloads[cgroup] = Strain(refaults, hits)
        return now != before


def parse_refaults(text: bytes) -> int | None:
    """Return the refaults in a text of ``memory.stat``, those of the cgroups below included.

    ``None``: the kernel does not tell them, as in v1 before 5.10, or the cgroup is gone.

    >>> parse_refaults(b"cache 4096\\nworkingset_refault_anon 1\\nworkingset_refault_file 2\\n")
    3
    """
    found = _REFAULTS.findall(text)
    totals = [number for total, number in found if total] or [number for _, number in found]
    return sum(map(int, totals)) if totals else None


def parse_limit_hits(text: bytes) -> int | None:
    """Return how often memory.high and memory.max were hit, in a text of ``memory.events``.

    >>> parse_limit_hits(b"low 7\\nhigh 1\\nmax 2\\noom 0\\n")
    3
    """
    found = _HITS.findall(text)
    return sum(map(int, found)) if found else None


def _hits_v2(folder: str) -> int | None:
    return parse_limit_hits(cgroup_text(f"{folder}/memory.events"))


def _hits_v1(folder: str) -> int | None:
    try:
        with os.scandir(folder) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return None
    texts = (cgroup_text(f"{each}/memory.failcnt").strip() for each in (folder, *below))
    counts = [int(text) for text in texts if text.isdigit()]
    return sum(counts) if counts else None
