# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What services used, from the snapshots of the history, and the requests and limits that fit it.

A figure is that of one workload of the service, over all its workloads: a pod of several that are
alike. The CPU use is an average over the time between two snapshots, so a shorter peak is not seen.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
import math
from typing import NamedTuple

from controller.agent.history.records import Line, Start
from controller.agent.history.snapshots import entries
from controller.agent.recording import Entry, RecordingError
from controller.core.model import CgroupId, QosClass, Workload, WorkloadSample
from controller.core.units import MIB, NS_PER_SEC

__all__ = ("LEAST_NS", "Advised", "Amounts", "ServiceUse", "ServiceUses", "advised")

# Less says nothing about the load of a service: a deployment and a cache that fills take as long.
LEAST_NS = 3600 * NS_PER_SEC
# A longer time between two snapshots hides what happened in it.
_LONGEST_NS = 90 * NS_PER_SEC
_STEPS_PER_CPU = 100
# A use is requested that is exceeded in one part of so many, that is the 95th percentile.
_ABOVE = 20
_HEADROOM = 1.2
# Less is a burst that hits the end of a period now and then.
_THROTTLED_RATIO = 0.01


class Amounts(NamedTuple):
    """The requests or the limits of a workload; ``None``: it has none, or it is not known."""

    cpus: float | None
    memory_bytes: int | None

    def lowest(self, other: "Amounts") -> "Amounts":
        """Return the lower one of each, of those that there are."""
        return Amounts(
            min(filter(None, (self.cpus, other.cpus)), default=None),
            min(filter(None, (self.memory_bytes, other.memory_bytes)), default=None),
        )


@dataclass(slots=True)
class ServiceUse:
    """What a service used in ``observed_ns``.

    ``steps_ns`` is the time at each CPU use, by hundredths of a CPU, rounded up. ``busy_ns`` is the
    time in which throttling was measured: that of threads which ran or were throttled, at least
    that of the snapshots. ``limit_hits`` counts how often its own limits of memory were reached.
    """

    service: str
    observed_ns: int = 0
    steps_ns: dict[int, int] = field(default_factory=dict)
    peak_cpus: float = 0.0
    throttled_ns: int = 0
    busy_ns: int = 0
    peak_memory_bytes: int | None = None
    limit_hits: int = 0

    @property
    def p95_cpus(self) -> float:
        """The CPU use that is exceeded for a twentieth of the time, rounded up."""
        total, above = sum(self.steps_ns.values()), 0
        for step in sorted(self.steps_ns, reverse=True):
            above += self.steps_ns[step]
            if above * _ABOVE > total:
                return step / _STEPS_PER_CPU
        return 0.0

    @property
    def throttled_ratio(self) -> float | None:
        """The part of its time for which it was throttled; ``None``: not measured."""
        return self.throttled_ns / self.busy_ns if self.busy_ns else None

    def add(self, span_ns: int, old: WorkloadSample, new: WorkloadSample) -> bool:
        """Take the use of a workload between two samples; return whether it was measured."""
        oncpu_ns = _increase(old.oncpu_ns, new.oncpu_ns)
        if oncpu_ns is None:
            return False
        cpus = oncpu_ns / span_ns
        step = math.ceil(oncpu_ns * _STEPS_PER_CPU / span_ns)
        self.steps_ns[step] = self.steps_ns.get(step, 0) + span_ns
        self.peak_cpus = max(self.peak_cpus, cpus)
        throttled_ns = _increase(old.throttled_ns, new.throttled_ns)
        if throttled_ns is not None:
            self.throttled_ns += throttled_ns
            self.busy_ns += max(span_ns, oncpu_ns + throttled_ns)
        if new.memory_bytes is not None:
            self.peak_memory_bytes = max(self.peak_memory_bytes or 0, new.memory_bytes)
        self.limit_hits += _increase(old.memory_limit_hits, new.memory_limit_hits) or 0
        return True


class ServiceUses:
    """Sums up the use of each service from *since_ns* to *until_ns* (ns since 1970).

    ``services`` are those that were measured, by name. ``workloads`` are the last ones, and
    ``boot_id`` is that of the boot in which they were seen.
    """

    def __init__(self, since_ns: int, until_ns: int) -> None:
        self._since_ns, self._until_ns = since_ns, until_ns
        self.services: dict[str, ServiceUse] = {}
        self.workloads: tuple[Workload, ...] = ()
        self.boot_id = ""
        self._wall_ns = self._time_ns = 0
        self._samples: dict[CgroupId, WorkloadSample] = {}

    @property
    def requests(self) -> dict[str, Amounts]:
        """What the pods of each service request, the lowest of each; without those that do not."""
        found: dict[str, Amounts] = {}
        for each in self.workloads:
            requests = Amounts(each.request_cpus, each.request_memory_bytes)
            if any(requests):
                found[each.service] = found.get(each.service, requests).lowest(requests)
        return found

    def read(self, lines: Iterable[Line | str]) -> None:
        """Take all *lines* of the stream of snapshots; there may be none."""
        try:
            for entry in entries(self._timed(lines)):
                self._take(entry)
        except RecordingError:
            return

    def _timed(self, lines: Iterable[Line | str]) -> Iterator[Line | str]:
        """Yield *lines*, and keep the time of day of the present one, which entries do not have."""
        for line in lines:
            if isinstance(line, Line):
                self._wall_ns = line.wall_ns
                if isinstance(line.record, Start):
                    self.boot_id = line.record.boot_id
            yield line

    def _take(self, entry: Entry) -> None:
        snapshot = entry.snapshot
        if entry.workloads is not None:
            self.workloads = entry.workloads
        span_ns, self._time_ns = snapshot.time_ns - self._time_ns, snapshot.time_ns
        before, self._samples = self._samples, {each.cgroup: each for each in snapshot.workloads}
        # Counters of another run begin anew.
        if entry.anew or not 0 < span_ns <= _LONGEST_NS:
            return
        if not self._since_ns <= self._wall_ns <= self._until_ns:
            return
        measured = set()
        for workload in self.workloads:
            old, new = before.get(workload.cgroup), self._samples.get(workload.cgroup)
            if workload.qos is not QosClass.LS or old is None or new is None:
                continue
            use = self.services.setdefault(workload.service, ServiceUse(workload.service))
            if use.add(span_ns, old, new):
                measured.add(workload.service)
        for service in measured:  # once, however many workloads it has
            self.services[service].observed_ns += span_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """Requests and limits that fit the use of a service.

    ``cpu_limit_cpus`` of ``None``: none is needed, or with ``throttled_ratio`` of ``None`` it is
    not known. ``memory_*`` of ``None``: the memory was not measured. ``oom_distance_bytes`` is what
    the present limit leaves above the peak; ``None``: there is no limit, or it is not known.
    """

    p95_cpus: float
    peak_cpus: float
    throttled_ratio: float | None
    peak_memory_bytes: int | None
    memory_limit_hits: int
    cpu_request_cpus: float
    cpu_limit_cpus: float | None
    memory_request_bytes: int | None
    memory_limit_bytes: int | None
    oom_distance_bytes: int | None


def advised(use: ServiceUse, now: Amounts | None) -> Advised | None:
    """Return what fits *use*; ``None``: it was observed for less than ``LEAST_NS``.

    :param now: its present limits; ``None``: not known.
    """
    if use.observed_ns < LEAST_NS:
        return None
    throttled_ratio, peak_bytes = use.throttled_ratio, use.peak_memory_bytes
    cpu_limit_cpus = None
    if throttled_ratio is not None and throttled_ratio >= _THROTTLED_RATIO:
        # With its limit it could not use more, so its peak may be lower than what it wants.
        highest = max(use.peak_cpus, (now.cpus if now is not None else None) or 0.0)
        cpu_limit_cpus = math.ceil(highest * _HEADROOM * _STEPS_PER_CPU) / _STEPS_PER_CPU
    distance_bytes = None
    if now is not None and now.memory_bytes is not None and peak_bytes is not None:
        distance_bytes = now.memory_bytes - peak_bytes
    return Advised(
        p95_cpus=use.p95_cpus,
        peak_cpus=use.peak_cpus,
        throttled_ratio=throttled_ratio,
        peak_memory_bytes=peak_bytes,
        memory_limit_hits=use.limit_hits,
        # A request of zero would leave a service without any weight.
        cpu_request_cpus=max(use.p95_cpus, 1 / _STEPS_PER_CPU),
        cpu_limit_cpus=cpu_limit_cpus,
        memory_request_bytes=None if peak_bytes is None else _whole_mib(peak_bytes),
        memory_limit_bytes=None if peak_bytes is None else _whole_mib(peak_bytes * _HEADROOM),
        oom_distance_bytes=distance_bytes,
    )


def _whole_mib(count_bytes: float) -> int:
    return max(1, math.ceil(count_bytes / MIB)) * MIB


def _increase(old: int | None, new: int | None) -> int | None:
    """Return the growth of a counter; ``None``: not measured, or it began anew."""
    return None if old is None or new is None or new < old else new - old
