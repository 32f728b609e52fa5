# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated node: services whose run-queue latency depends on best-effort work and its knobs.

Usage::

    node = SimulatedNode(seed=1)
    planner = Planner(settings, node.workloads)
    outcomes = ()
    for tick in range(300):
        plan = planner.step(node.snapshot(tick * 200_000_000), outcomes)
        outcomes = node.execute(plan.actions)       # or () in observe mode

``snapshot(now_ns)`` advances the node to *now_ns* and reads it; ``execute`` writes knobs and
returns the outcomes of a real executor. Between ticks the conditions can be changed:
``request_rate`` and ``wants`` for load steps, ``write`` for a write by another program,
``refused`` for writes that the kernel refuses, ``blind`` for a probe without data,
``steal_ratio`` and ``throttled_ratio`` for waits that best-effort does not cause. ``p99_ns`` is the
true latency and ``best_effort_cpu_s`` the CPU time of best-effort.

The plant is not a model of the scheduler but a function whose shape is taken from measurements of
nginx beside stress-ng on two CPUs: a wait is about as long as best-effort runs without
interruption, so p99 is proportional to best-effort's CPU use to the power of ``slope``. Without any
quota p99 is ``free_jump`` times longer, with sched-idle ``idle_jump`` times shorter. A write takes
effect after ``dead_ticks``, and the latency of every tick has lognormal noise.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
import math
from random import Random
from typing import TypeVar

from controller.core.decision import Action, Outcome
from controller.core.indicators.measurement import BUCKETS, UPPER_NS
from controller.core.knob_values import parse_quota
from controller.core.model import (
    Blame,
    CgroupId,
    Knob,
    KnobValue,
    QosClass,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadSample,
)
from controller.demo.simulated_knobs import KnobTable, make_workload, target_of

__all__ = (
    "Plant",
    "SimulatedNode",
)


_Key = TypeVar("_Key")

_FREE_QUOTA = KnobValue("max 100000 0")
_NOT_IDLE = KnobValue("0 1024")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """Parameters of the node; times in ns, CPU in CPUs.

    The run-queue p99 is ``p99_ns`` if best-effort uses ``p99_at_cpus`` under a quota, and
    ``quiet_p99_ns`` if the service is alone. ``slope``, ``free_jump``, ``idle_jump`` and
    ``dead_ticks``: see the module. ``noise`` is the standard deviation of the logarithm of one
    tick's latency. ``unknown`` is the share of the wait that the probe cannot attribute. A service
    has ``threads``, each with at most one request at a time.
    """

    cpus: int = 2
    p99_ns: float = 5e6
    p99_at_cpus: float = 0.5
    slope: float = 1.0
    quiet_p99_ns: float = 60e3
    free_jump: float = 8.0
    idle_jump: float = 30.0
    dead_ticks: int = 1
    noise: float = 0.25
    unknown: float = 0.05
    oncpu_per_request_ns: float = 150e3
    threads: int = 2


class SimulatedNode:
    """A machine with latency-sensitive workloads web-0, ... and best-effort ones batch-0, ..."""

    def __init__(
        self,
        seed: int,
        plant: Plant | None = None,
        wants: Iterable[float] = (1.5, 0.5),
        services: int = 1,
        request_rate: float = 1500.0,
        profile: str = "default",
        quotas: Iterable[KnobValue] = (),
    ) -> None:
        """Create a node with one best-effort workload per item of *wants*.

        *wants* is the CPU use of each without limit, in CPUs; *quotas* are their initial values of
        the quota, as an operator would set them.
        """
        self.plant = plant or Plant()
        self.wants = list(wants)
        self.request_rate = request_rate
        self.blind = False
        self.steal_ratio = 0.0
        self.throttled_ratio = 0.0
        self.p99_ns = 0.0
        self.best_effort_cpu_s = 0.0
        self.sensitive = [
            make_workload(f"web-{index}", 100 + index, QosClass.LS, profile)
            for index in range(services)
        ]
        self.best_effort = [
            make_workload(f"batch-{index}", 10_000 + index, QosClass.BE, profile)
            for index in range(len(self.wants))
        ]
        self._random = Random(seed)  # noqa: S311 - noise, not secrets
        self._now_ns: int | None = None
        self._knobs = KnobTable()
        operators = list(quotas)
        for index, workload in enumerate(self.best_effort):
            quota = operators[index] if index < len(operators) else _FREE_QUOTA
            self._knobs.add(target_of(workload), Knob.CPU_QUOTA, quota)
            self._knobs.add(target_of(workload), Knob.SCHED_IDLE, _NOT_IDLE)
        self._effects: deque[tuple[list[float], float]] = deque()
        self._oncpu: dict[CgroupId, float] = {}
        self._waited: dict[CgroupId, float] = {}
        self._histograms: dict[CgroupId, list[int]] = {}
        self._blame: dict[tuple[CgroupId, CgroupId | None, bool], float] = {}
        self._steal_ns = 0.0
        self._throttled_ns = 0.0
        self._sampled_ns = 0
        self.parent: Target | None = None

    @property
    def refused(self) -> set[tuple[int, Knob]]:
        """Knobs whose writes fail, by id of the cgroup."""
        return self._knobs.refused

    @refused.setter
    def refused(self, knobs: set[tuple[int, Knob]]) -> None:
        self._knobs.refused = knobs

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads of the node, services first."""
        return (*self.sensitive, *self.best_effort)

    def join_parent(self) -> None:
        """Put all best-effort workloads below ``parent``, which may have a quota for all."""
        self.parent = Target(TargetKind.CGROUP, "cpu", 9_999, "/batch")
        self._knobs.add(self.parent, Knob.CPU_QUOTA, _FREE_QUOTA)
        self.best_effort = [
            each._replace(quota_at=self.parent, path=f"{self.parent.path}{each.path}")
            for each in self.best_effort
        ]

    def join(self, want: float) -> Workload:
        """Add a best-effort workload that uses *want* CPUs without a limit, and return it."""
        number = 1 + max((each.cgroup.id for each in self.best_effort), default=9_999)
        profile = self.sensitive[0].profile
        workload = make_workload(f"batch-{number - 10_000}", number, QosClass.BE, profile)
        self.best_effort.append(workload)
        self.wants.append(want)
        self._effects.clear()
        self._knobs.add(target_of(workload), Knob.CPU_QUOTA, _FREE_QUOTA)
        self._knobs.add(target_of(workload), Knob.SCHED_IDLE, _NOT_IDLE)
        return workload

    def leave(self, index: int) -> None:
        """Remove the best-effort workload at *index* with its knobs."""
        workload = self.best_effort.pop(index)
        del self.wants[index]
        self._effects.clear()
        self._knobs.remove(workload.cgroup.id)

    def value(self, workload: Workload, knob: Knob) -> KnobValue:
        """Return the value of a knob."""
        return self.value_of(workload.cgroup.id, knob)

    def value_of(self, id_: int, knob: Knob) -> KnobValue:
        """Return the value of a knob, by id of the cgroup."""
        return self._knobs.value(id_, knob)

    def write(self, workload: Workload, knob: Knob, value: KnobValue) -> None:
        """Set a knob, as a foreign value."""
        self._knobs.write(workload.cgroup.id, knob, value)

    def execute(self, actions: Iterable[Action]) -> tuple[Outcome, ...]:
        """Write knobs; a removed target fails as gone, a knob in ``refused`` with EINVAL."""
        return self._knobs.execute(actions)

    def snapshot(self, now_ns: int) -> Snapshot:
        """Advance the node to *now_ns* and return its readings."""
        last_ns, self._now_ns = self._now_ns, now_ns
        self._knobs.now_ns = now_ns
        if last_ns is not None and now_ns > last_ns:
            self._advance(now_ns - last_ns)
        if not self.blind:
            self._sampled_ns = now_ns
        return Snapshot(
            time_ns=now_ns,
            age_ns=now_ns - self._sampled_ns,
            workloads=tuple(self._sample(workload) for workload in self.workloads),
            blame=tuple(
                Blame(victim, culprit, known, round(wait))
                for (victim, culprit, known), wait in self._blame.items()
            ),
            system_oncpu_ns=0,
            steal_ns=round(self._steal_ns),
            knobs=self._knobs.readings(),
        )

    def _advance(self, dt_ns: int) -> None:
        self._effects.append(self._effect_of_knobs())
        while len(self._effects) > self.plant.dead_ticks + 1:
            self._effects.popleft()
        uses, factor = self._effects[0]
        total = sum(uses)
        for workload, use in zip(self.best_effort, uses, strict=True):
            _add(self._oncpu, workload.cgroup, use * dt_ns)
        self.best_effort_cpu_s += total * dt_ns / 1e9
        self._steal_ns += self.steal_ratio * self.plant.cpus * dt_ns
        self._throttled_ns += self.throttled_ratio * dt_ns
        true_ns = self.plant.p99_ns * factor * (total / self.plant.p99_at_cpus) ** self.plant.slope
        self.p99_ns = self.plant.quiet_p99_ns + true_ns
        for service in self.sensitive:
            noise = math.exp(self._random.gauss(0.0, self.plant.noise))
            self._wait(service.cgroup, self.p99_ns * noise, uses, dt_ns)

    def _effect_of_knobs(self) -> tuple[list[float], float]:
        uses = []
        limited = idle = False
        for workload, want in zip(self.best_effort, self.wants, strict=True):
            cpus = parse_quota(self.value(workload, Knob.CPU_QUOTA)).cpus
            limited = limited or (cpus is not None and cpus < want)
            idle = idle or self.value(workload, Knob.SCHED_IDLE) == KnobValue("1")
            uses.append(want if cpus is None else min(want, cpus))
        room = self.plant.cpus - self._service_cpus() * len(self.sensitive)
        if self.parent is not None:
            room = min(
                room, parse_quota(self.value_of(self.parent.id, Knob.CPU_QUOTA)).cpus or room
            )
        scale = min(1.0, room / sum(uses)) if sum(uses) > 0 else 1.0
        factor = 1.0 if limited else self.plant.free_jump
        return [use * scale for use in uses], factor / (self.plant.idle_jump if idle else 1.0)

    def _service_cpus(self) -> float:
        return self.request_rate * self.plant.oncpu_per_request_ns / 1e9

    def _wait(self, cgroup: CgroupId, p99_ns: float, uses: list[float], dt_ns: int) -> None:
        """Count the requests of a service, whose waits are exponential with *p99_ns*."""
        mean_ns = p99_ns / math.log(100.0)
        most = self.plant.threads * dt_ns / (mean_ns + self.plant.oncpu_per_request_ns)
        requests = min(self.request_rate * dt_ns / 1e9, most)
        histogram = self._histograms.setdefault(cgroup, [0] * BUCKETS)
        left = 1.0
        for index, upper_ns in enumerate(UPPER_NS):
            beyond = math.exp(-upper_ns / mean_ns) if index < BUCKETS - 1 else 0.0
            expected = requests * (left - beyond)
            left = beyond
            if expected > 0:
                histogram[index] += int(expected + self._random.random())
            if left * requests < 1e-3:
                break
        waited_ns = requests * mean_ns
        _add(self._oncpu, cgroup, self._service_cpus() * dt_ns)
        _add(self._waited, cgroup, waited_ns)
        caused_ns = waited_ns * (1.0 - self.plant.quiet_p99_ns / self.p99_ns)
        total = sum(uses)
        for workload, use in zip(self.best_effort, uses, strict=True):
            if use > 0:
                known = caused_ns * (1 - self.plant.unknown) * use / total
                _add(self._blame, (cgroup, workload.cgroup, True), known)
        if total > 0:
            _add(self._blame, (cgroup, None, False), caused_ns * self.plant.unknown)
        _add(self._blame, (cgroup, None, True), waited_ns - (caused_ns if total > 0 else 0.0))

    def _sample(self, workload: Workload) -> WorkloadSample:
        cgroup = workload.cgroup
        oncpu_ns = round(self._oncpu.get(cgroup, 0.0))
        if workload.qos is not QosClass.LS:
            return WorkloadSample(cgroup, oncpu_ns=oncpu_ns)
        histogram = tuple(self._histograms.get(cgroup) or [0] * BUCKETS)
        waited_ns = round(self._waited.get(cgroup, 0.0))
        return WorkloadSample(
            cgroup,
            oncpu_ns=oncpu_ns,
            wait_total_ns=waited_ns + round(self._throttled_ns),
            wait_inflicted_ns=waited_ns,
            waits=sum(histogram),
            runq_histogram=histogram,
            throttled_ns=round(self._throttled_ns),
        )


def _add(counters: dict[_Key, float], key: _Key, by: float) -> None:
    counters[key] = counters.get(key, 0.0) + by
