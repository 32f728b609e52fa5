# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes on which best-effort work slows a service down through a resource other than CPU.

There is one for caches and memory bandwidth, one for a link, one for memory, one for a disk. The
service's figure is a smooth function of the use of the resource by best-effort work, and a few
times worse without limits than at the floor. The nodes are not models of hardware.

They are used like ``SimulatedNode``: ``snapshot(now_ns)`` advances a node and reads it, ``execute``
writes knobs. ``value`` is the true figure of the service, without the noise of the measurement, and
``best_effort_work`` the use by best-effort work so far, in the unit of the resource.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
import math
from random import Random
from typing import Any

from controller.core.decision import Action, Outcome
from controller.core.indicators.measurement import BUCKETS
from controller.core.knob_values import (
    parse_amount,
    parse_bandwidth,
    parse_disks,
    parse_masks,
    parse_quota,
    parse_weight,
)
from controller.core.model import (
    CgroupId,
    Knob,
    KnobValue,
    LinkSample,
    QosClass,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadSample,
)
from controller.core.settings import DiskFacts, HostFacts, LinkFacts, ResctrlFacts
from controller.demo.simulated_knobs import KnobTable, make_workload, target_of

__all__ = (
    "CacheNode",
    "DiskNode",
    "DiskWaitNode",
    "MemoryNode",
    "NetworkNode",
    "ResourceNode",
)

_SERVICE_CPUS = 0.5


class ResourceNode(ABC):
    """Latency-sensitive "web" beside best-effort "batch-0" ..., which use *wants* without limits.

    A write takes effect after *dead_ticks*. *noise* is the standard deviation of the logarithm of
    what is measured in one tick. *slope* changes the slope of the plant around a fixed middle, and
    with it the gain of the loop. ``scale`` is a factor on the service's figure.
    """

    def __init__(
        self,
        seed: int,
        wants: Iterable[float] = (),
        slope: float = 1.0,
        noise: float = 0.05,
        dead_ticks: int = 1,
    ) -> None:
        self.wants = list(wants)
        self.slope = slope
        self.noise = noise
        self.dead_ticks = dead_ticks
        self.blind = False
        self.scale = 1.0
        self.value = 0.0
        self.best_effort_work = 0.0
        self.knobs = KnobTable()
        self.service = make_workload("web", 100, QosClass.LS, "default")
        self.best_effort = [
            make_workload(f"batch-{index}", 10_000 + index, QosClass.BE, "default")
            for index in range(len(self.wants))
        ]
        for workload in self.best_effort:
            self.knobs.add(target_of(workload), Knob.CPU_QUOTA, KnobValue("max 100000 0"))
            self.knobs.add(target_of(workload), Knob.SCHED_IDLE, KnobValue("0 1024"))
        self._random = Random(seed)
        self._now_ns: int | None = None
        self._sampled_ns = 0
        self._effects: deque[list[float]] = deque()
        self._counters: dict[CgroupId, dict[str, float]] = {}

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads of the node."""
        return (self.service, *self.best_effort)

    @property
    @abstractmethod
    def host(self) -> HostFacts:
        """The facts of this machine."""

    def execute(self, actions: Iterable[Action]) -> tuple[Outcome, ...]:
        """Write knobs."""
        return self.knobs.execute(actions)

    def snapshot(self, now_ns: int) -> Snapshot:
        """Advance to *now_ns* and read everything."""
        last_ns, self._now_ns = self._now_ns, now_ns
        self.knobs.now_ns = now_ns
        if last_ns is not None and now_ns > last_ns:
            self._advance(now_ns - last_ns)
        if not self.blind:
            self._sampled_ns = now_ns
        return Snapshot(
            time_ns=now_ns,
            age_ns=now_ns - self._sampled_ns,
            workloads=tuple(
                WorkloadSample(workload.cgroup) if self.blind else self._sample(workload)
                for workload in self.workloads
            ),
            system_oncpu_ns=0,
            steal_ns=0,
            knobs=self.knobs.readings(),
            links=() if self.blind else self._links(),
        )

    @abstractmethod
    def _use(self) -> list[float]:
        """Return the use of the resource by each best-effort workload under the present knobs."""

    @abstractmethod
    def _run(self, used: list[float], dt_ns: int) -> None:
        """Let the service and best-effort, which has *used* that much, run for *dt_ns*."""

    def _links(self) -> tuple[LinkSample, ...]:
        return ()

    def _advance(self, dt_ns: int) -> None:
        self._effects.append(self._use())
        while len(self._effects) > self.dead_ticks + 1:
            self._effects.popleft()
        used = self._effects[0]
        self.best_effort_work += sum(used) * dt_ns / 1e9
        self._count(self.service, "oncpu_ns", _SERVICE_CPUS * dt_ns)
        for index, workload in enumerate(self.best_effort):
            self._count(workload, "oncpu_ns", self._cpus(index) * dt_ns)
        self._run(used, dt_ns)

    def _cpus(self, index: int) -> float:
        """Return the CPUs of a best-effort workload, which uses one without a quota."""
        value = self.knobs.value(self.best_effort[index].cgroup.id, Knob.CPU_QUOTA)
        quota = parse_quota(value).cpus
        return 1.0 if quota is None else min(1.0, quota)

    def _noisy(self, value: float) -> float:
        return value * math.exp(self._random.gauss(0.0, self.noise))

    def _count(self, workload: Workload, name: str, by: float) -> None:
        counters = self._counters.setdefault(workload.cgroup, {})
        counters[name] = counters.get(name, 0.0) + by

    def _set(self, workload: Workload, name: str, to: float) -> None:
        self._counters.setdefault(workload.cgroup, {})[name] = to

    def _sample(self, workload: Workload) -> WorkloadSample:
        counters = self._counters.get(workload.cgroup, {})
        whole: dict[str, Any] = {name: round(value) for name, value in counters.items()}
        sample = WorkloadSample(workload.cgroup, **whole)
        if workload.qos is not QosClass.LS:
            return sample
        histogram = (0,) * BUCKETS
        return sample._replace(
            wait_total_ns=0, wait_inflicted_ns=0, waits=0, runq_histogram=histogram, throttled_ns=0
        )


GROUP = Target(TargetKind.RESCTRL_GROUP, "/sys/fs/resctrl", 77, "sweetpoint-best-effort")
LINK = Target(TargetKind.LINK, "4026531840", 2, "eth0")

_HZ = 3e9
# The middle of the plant, which does not depend on the slope.
_HALF_HARM = 0.25
_HALF_CPI = 1.25


class CacheNode(ResourceNode):
    """Memory streams beside a service, whose cache misses and memory latency they raise.

    *wants* is in bytes/s at full speed. The percent scale of MBA is not linear: a value of p leaves
    1 - (1 - p)**bend of the bandwidth, nine tenths at 50 % with the default. ``value`` is CPI.
    """

    harm_by_bandwidth = 0.6
    harm_by_ways = 0.1
    peak = 20e9

    def __init__(
        self,
        seed: int,
        wants: Iterable[float] = (12e9, 6e9),
        slope: float = 1.0,
        noise: float = 0.03,
        dead_ticks: int = 1,
        bend: float = 3.3,
        measured: bool = True,
        group: bool = True,
    ) -> None:
        """*measured*: the bandwidth can be measured. *group*: there is a resctrl group."""
        super().__init__(seed, wants, slope, noise, dead_ticks)
        self.bend = bend
        self.measured = measured
        if group:
            self.knobs.add(GROUP, Knob.LLC_WAYS, KnobValue("0=7ff;1=7ff"))
            self.knobs.add(GROUP, Knob.MBA, KnobValue("0=100;1=100"))
        self._group = group

    @property
    def host(self) -> HostFacts:
        """A host of two sockets with resctrl."""
        facts = ResctrlFacts(
            domains=(0, 1),
            mba_min=10,
            mba_max=100,
            mba_step=10,
            llc_ways=11,
            llc_min_ways=2,
            bandwidth=self.measured,
        )
        return HostFacts(cpus=4, resctrl=facts if self._group else None)

    @property
    def percent(self) -> int:
        """The MBA value of best-effort work in percent."""
        return parse_bandwidth(self.knobs.value(GROUP.id, Knob.MBA))[0]

    @property
    def ways(self) -> int:
        """The cache ways of best-effort."""
        if not self._group:
            return 11
        return parse_masks(self.knobs.value(GROUP.id, Knob.LLC_WAYS))[0].bit_count()

    def part_at(self, percent: int) -> float:
        """Return the part of the bandwidth that an MBA value of *percent* leaves."""
        return 1.0 - math.pow(1.0 - percent / 100, self.bend)

    def cpi_at(self, part: float) -> float:
        """Return the CPI when best-effort has *part* of its bandwidth, with its present ways."""
        load = part * sum(self.wants) / self.peak
        harm = self.harm_by_bandwidth * load + self.harm_by_ways * self.ways / 11 * min(1.0, load)
        return self.scale * _HALF_CPI * math.exp(self.slope * (harm - _HALF_HARM))

    def _use(self) -> list[float]:
        part = self.part_at(self.percent) if self._group else 1.0
        return [want * part * self._cpus(index) for index, want in enumerate(self.wants)]

    def _run(self, used: list[float], dt_ns: int) -> None:
        self.value = self.cpi_at(sum(used) / sum(self.wants) if any(self.wants) else 0.0)
        cycles = 0.5 * _HZ * dt_ns / 1e9
        self._count(self.service, "cycles", cycles)
        self._count(self.service, "instructions", cycles / self._noisy(self.value))
        self._count(self.service, "llc_misses", cycles / 1000 * self.value)
        for workload, use in zip(self.best_effort, used, strict=True):
            self._count(workload, "llc_misses", use * dt_ns / 1e9 / 64)
            self._count(workload, "cycles", cycles)
            self._count(workload, "instructions", cycles)
        if self.measured:
            self._count(self.service, "memory_bandwidth_bytes", 1e9 * dt_ns / 1e9)
            for workload, use in zip(self.best_effort, used, strict=True):
                self._count(workload, "memory_bandwidth_bytes", use * dt_ns / 1e9)


class NetworkNode(ResourceNode):
    """Bulk transfers on the service's link; *wants* in bytes/s. ``value`` is its backlog, bytes."""

    link = 25e6
    service_rate = 10e6
    half_backlog = 8000.0
    half_load = 0.25

    def __init__(
        self,
        seed: int,
        wants: Iterable[float] = (30e6, 10e6),
        slope: float = 1.0,
        noise: float = 0.2,
        dead_ticks: int = 1,
    ) -> None:
        super().__init__(seed, wants, slope, noise, dead_ticks)
        self.knobs.add(LINK, Knob.TC_CEILING, KnobValue(f"{self.link:.0f} {self.link:.0f}"))
        self._sent = {QosClass.LS: 0.0, QosClass.BE: 0.0}
        self._backlog = 0.0

    @property
    def host(self) -> HostFacts:
        """One link of 200 Mbit/s."""
        return HostFacts(cpus=4, links=(LinkFacts(LINK, self.link, self.link),))

    @property
    def ceiling(self) -> float:
        """Ceiling of the best-effort tier in bytes/s."""
        return float(self.knobs.value(LINK.id, Knob.TC_CEILING).split()[0])

    def _use(self) -> list[float]:
        wanted = sum(self.wants)
        sent = min(wanted, self.ceiling, self.link - self.service_rate)
        return [want / wanted * sent if wanted else 0.0 for want in self.wants]

    def _run(self, used: list[float], dt_ns: int) -> None:
        load = sum(used) / self.link
        harm = math.exp(6.0 * self.slope * (load - self.half_load))
        self.value = self.scale * self.half_backlog * harm
        self._backlog = self._noisy(self.value)
        self._sent[QosClass.LS] += self.service_rate * dt_ns / 1e9
        self._sent[QosClass.BE] += sum(used) * dt_ns / 1e9
        self._count(self.service, "tx_bytes", self.service_rate * dt_ns / 1e9)
        self._count(self.service, "rx_bytes", 0.0)
        for workload, use in zip(self.best_effort, used, strict=True):
            self._count(workload, "tx_bytes", use * dt_ns / 1e9)
            self._count(workload, "rx_bytes", 0.0)

    def _links(self) -> tuple[LinkSample, ...]:
        return tuple(
            LinkSample(
                link=LINK,
                ingress=ingress,
                tier=str(tier),
                sent_bytes=0 if ingress else round(sent),
                sent_packets=0 if ingress else round(sent / 1500),
                drops=0,
                backlog_bytes=round(self._backlog) if tier is QosClass.LS and not ingress else 0,
            )
            for ingress in (False, True)
            for tier, sent in self._sent.items()
        )


# Pages per second that a service without progress would read again.
_REFAULTS = 10_000


class MemoryNode(ResourceNode):
    """Batch work that fills the memory; *wants* in bytes. ``value`` is the time stalled."""

    memory = 8 << 30
    service_bytes = 2 << 30

    def __init__(
        self,
        seed: int,
        wants: Iterable[float] = (3.5 * 2**30, 2.2 * 2**30),
        slope: float = 1.0,
        noise: float = 0.2,
        dead_ticks: int = 1,
    ) -> None:
        super().__init__(seed, wants, slope, noise, dead_ticks)
        # Hits of the service's own limit in each tick.
        self.own_hits = 0.0
        for workload in self.best_effort:
            self.knobs.add(target_of(workload), Knob.MEMORY_HIGH, KnobValue("max"))

    @property
    def host(self) -> HostFacts:
        """A host with 8 GiB."""
        return HostFacts(cpus=4, memory_bytes=self.memory)

    def _use(self) -> list[float]:
        return [
            min(want, parse_amount(self.knobs.value(workload.cgroup.id, Knob.MEMORY_HIGH)))
            for workload, want in zip(self.best_effort, self.wants, strict=True)
        ]

    def _run(self, used: list[float], dt_ns: int) -> None:
        full = (self.service_bytes + sum(used)) / self.memory
        self.value = min(0.5, self.scale * 0.01 * math.exp(8.0 * self.slope * (full - 0.75)))
        stalled = min(0.9, self._noisy(self.value))
        self._count(self.service, "psi_memory_some_ns", stalled * dt_ns)
        self._count(self.service, "refaults", stalled * _REFAULTS * dt_ns / 1e9)
        self._count(self.service, "memory_limit_hits", self.own_hits)
        self._set(self.service, "memory_bytes", self.service_bytes)
        for workload, use in zip(self.best_effort, used, strict=True):
            self._set(workload, "memory_bytes", use)


class DiskNode(ResourceNode):
    """Batch work that fills the disk's queue; *wants* in bytes/s. ``value`` as for memory."""

    bandwidth = 500e6
    disk = DiskFacts("8:0", bandwidth, bandwidth)
    service_rate = 50e6

    def __init__(
        self,
        seed: int,
        wants: Iterable[float] = (300e6, 120e6),
        slope: float = 1.0,
        noise: float = 0.2,
        dead_ticks: int = 1,
        weights: float = 0.3,
    ) -> None:
        """*weights* is the part of the harm that io.weight takes away at its floor."""
        super().__init__(seed, wants, slope, noise, dead_ticks)
        self.weights = weights
        for workload in self.best_effort:
            self.knobs.add(target_of(workload), Knob.IO_WEIGHT, KnobValue("100"))
            self.knobs.add(target_of(workload), Knob.IO_MAX, KnobValue("max"))

    @property
    def host(self) -> HostFacts:
        """One disk of 500 MB/s."""
        return HostFacts(cpus=4, disks=(self.disk,))

    def _use(self) -> list[float]:
        uses = []
        for workload, want in zip(self.best_effort, self.wants, strict=True):
            limits = parse_disks(self.knobs.value(workload.cgroup.id, Knob.IO_MAX))
            uses.append(min(want, limits.get((self.disk.device, "wbps"), math.inf)))
        return uses

    def _run(self, used: list[float], dt_ns: int) -> None:
        weight = min(
            parse_weight(self.knobs.value(workload.cgroup.id, Knob.IO_WEIGHT))
            for workload in self.best_effort
        )
        softened = 1.0 - self.weights * (1.0 - weight / 100)
        load = sum(used) / self.bandwidth * softened
        self.value = min(0.5, self.scale * 0.02 * math.exp(5.0 * self.slope * (load - 0.35)))
        self._count(self.service, "psi_io_some_ns", min(0.9, self._noisy(self.value)) * dt_ns)
        self._count(self.service, "io_bytes", self.service_rate * dt_ns / 1e9)
        for workload, use in zip(self.best_effort, used, strict=True):
            self._count(workload, "io_bytes", use * dt_ns / 1e9)


class DiskWaitNode(DiskNode):
    """The same disk with requests counted, its capacity and io.weight unknown to the agent.

    ``value`` is the mean time of a request of the service in ns, 1 ms at a load of 0.35.
    """

    requests_per_s = 500.0
    inflicts = True  # whether the disk works for best-effort while the service waits

    @property
    def host(self) -> HostFacts:
        """One disk, whose capacity is not known."""
        return HostFacts(cpus=4, disks=(DiskFacts("8:0"),), io_weight=False)

    def _run(self, used: list[float], dt_ns: int) -> None:
        load = sum(used) / self.bandwidth
        own = self.service_rate / self.bandwidth
        part = load / (load + own) if self.inflicts else 0.0
        self.value = self.scale * 1e6 * math.exp(5.0 * self.slope * (load - 0.35))
        requests = self.requests_per_s * dt_ns / 1e9
        wait_ns = self._noisy(self.value) * requests
        self._count(self.service, "disk_requests", requests)
        self._count(self.service, "disk_wait_ns", wait_ns)
        self._count(self.service, "disk_inflicted_ns", wait_ns * part)
        self._count(self.service, "io_bytes", self.service_rate * dt_ns / 1e9)
        for workload, use in zip(self.best_effort, used, strict=True):
            self._count(workload, "io_bytes", use * dt_ns / 1e9)
