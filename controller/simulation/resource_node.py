# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated node in which best-effort work hurts a service through something else than CPU.

It is used like ``SimulatedNode``: ``snapshot(now_ns)`` advances it and reads it, ``execute``
writes knobs. ``value`` is the service's true figure, without the noise of measuring it, and
``best_effort_work`` what best-effort got done, in the unit of the resource.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
import math
from random import Random
from typing import Any

from controller.control.quota import parse_quota
from controller.decision import Action, Outcome
from controller.indicators.histogram import BUCKETS
from controller.model import (
    CgroupId,
    Knob,
    KnobValue,
    LinkSample,
    QosClass,
    Snapshot,
    Workload,
    WorkloadSample,
)
from controller.settings import HostFacts
from controller.simulation.knobs import KnobTable
from controller.simulation.node import make_workload, target_of

__all__ = ("ResourceNode",)

_SERVICE_CPUS = 0.5


class ResourceNode(ABC):
    """Latency-sensitive "web" beside best-effort "batch-0" ... that each would use *wants*.

    A write takes effect after *dead_ticks*; *noise* is the standard deviation of the logarithm
    of what is measured in one tick; *slope* bends the plant, and with it the loop's gain, around
    a middle that stays. ``scale`` makes everything worse, whatever best-effort does.
    """

    def __init__(
        self,
        seed: int,
        wants: Iterable[float],
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
        self._random = Random(seed)  # noqa: S311 - noise, not secrets
        self._now_ns: int | None = None
        self._sampled_ns = 0
        self._effects: deque[list[float]] = deque()
        self._counters: dict[CgroupId, dict[str, float]] = {}

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Who is here."""
        return (self.service, *self.best_effort)

    @property
    @abstractmethod
    def host(self) -> HostFacts:
        """What the planner must know of this machine."""

    def execute(self, actions: Iterable[Action]) -> tuple[Outcome, ...]:
        """Write knobs."""
        return self.knobs.execute(actions)

    def snapshot(self, now_ns: int) -> Snapshot:
        """Advance to *now_ns* and read everything."""
        last_ns, self._now_ns = self._now_ns, now_ns
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
        """Return what each best-effort workload uses of the resource under the knobs now."""

    @abstractmethod
    def _hurt(self, used: list[float], dt_ns: int) -> None:
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
        self._hurt(used, dt_ns)

    def _cpus(self, index: int) -> float:
        """Return the CPUs of a best-effort workload, which would run on one."""
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
