# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The real planner on the simulated node: snapshots as the agent makes them, and its writes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from controller.config.load import ConfigError, load
from controller.core.decision import Action, Outcome
from controller.core.indicators.measurement import BUCKETS, LOWER_NS
from controller.core.knob_values import (
    parse_bandwidth,
    parse_idle,
    parse_masks,
    parse_quota,
)
from controller.core.learning.state import LearnedIndicator
from controller.core.looks import TickReason
from controller.core.model import (
    Blame,
    CgroupId,
    Knob,
    KnobReading,
    KnobValue,
    Mode,
    QosClass,
    ServiceReading,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadSample,
)
from controller.core.planner import Planner
from controller.core.settings import HostFacts, ResctrlFacts, Settings
from tests.plant.machine import Machine
from tests.plant.node import Node
from tests.plant.profiles import CONFIG, ProfileKind, read
from tests.support.loops.looking_loop import Looker

__all__ = ("Agent", "Fault", "Setup", "settings_for")

NS = 1_000_000_000
_BEGIN_NS = 1_000 * NS
FAULT_S = 100.0
# How old a figure is then that is old, in whole seconds.
OLD_S = 12
_EDGES = np.array(LOWER_NS[1:], dtype=np.float64)


class Fault(StrEnum):
    """What is wrong with the service's figure from 100 s on."""

    NONE = "none"
    MISSING = "missing"  # an answer without a value
    DEAD = "dead"
    TIMES_TEN = "times-ten"
    TENTH = "tenth"
    OLD = "old"  # by 12 s


@dataclass(frozen=True)
class Setup:
    """How the agent is set up; *without* are parts of the law that are off.

    *looks*: ticks are left out as the agent does it.
    """

    profile: ProfileKind = ProfileKind.OBJECTIVE
    resctrl: bool = False
    without: tuple[str, ...] = ()
    fault: Fault = Fault.NONE
    looks: bool = False


def settings_for(setup: Setup, machine: Machine) -> Settings:
    """Return the settings, loaded from files as a user writes them.

    :raises ConfigError: ``without`` names an unknown part of the law, or one that is always on.
    """
    config = load(
        CONFIG, mode=Mode.ENFORCE, cpus=machine.cpus, read=read(setup.profile, setup.without)
    )
    if config.warnings:
        raise ConfigError(config.warnings)
    facts = None
    if setup.resctrl and machine.partitions:
        facts = ResctrlFacts(
            domains=(0,),
            mba_min=10,
            mba_max=100,
            mba_step=10,
            llc_ways=machine.ways,
            llc_min_ways=2,
            bandwidth=True,
        )
    host = HostFacts(cpus=machine.cpus, resctrl=facts, cpu_model="simulated")
    return replace(config.settings, host=host)


class Agent:
    """Steps the planner and applies its plans to the node.

    ``writes`` counts the knobs written so far, ``ticks`` the plans.
    """

    def __init__(
        self,
        node: Node,
        setup: Setup,
        learned: Sequence[LearnedIndicator] = (),
    ) -> None:
        self._node, self._fault = node, setup.fault
        self._resctrl = setup.resctrl and node.machine.partitions
        self._workloads = (
            _workload(1, "api", QosClass.LS, setup.profile.profile),
            *(_workload(n + 2, each.name, QosClass.BE, "") for n, each in enumerate(node.jobs)),
        )
        settings = settings_for(setup, node.machine)
        self._planner = Planner(settings, self._workloads, learned=learned)
        self._originals: dict[tuple[Target, Knob], KnobValue] = {}
        self._readings: dict[tuple[Target, Knob], KnobReading] = {}
        self._present: tuple[KnobReading, ...] = ()
        self._jobs: dict[Target, int] = {}
        self._add_knobs()
        self._outcomes: tuple[Outcome, ...] = ()
        self._histogram = np.zeros(BUCKETS, dtype=np.int64)
        self._waits = 0
        self._slow_s = -1.0
        self._packets = 0
        self._bytes: list[int] = [0] * len(self._workloads)
        self._figures: list[tuple[float, float | None]] = []
        self._last = (0.0, 0.0)
        self.writes = self.ticks = 0
        self._looker = Looker(self._workloads) if setup.looks else None
        self._seen: ServiceReading | None = None

    def _add_knobs(self) -> None:
        free = KnobValue("max 100000 0")
        for n, each in enumerate(self._workloads):
            target = Target(TargetKind.CGROUP, each.cgroup.hierarchy, each.cgroup.id, each.path)
            self._originals[target, Knob.CPU_QUOTA] = free
            if each.qos is QosClass.BE:
                self._jobs[target] = n - 1
                if self._node.machine.idle_level:
                    self._originals[target, Knob.SCHED_IDLE] = KnobValue("0 100")
        if self._resctrl:
            group = Target(TargetKind.RESCTRL_GROUP, "/sys/fs/resctrl", 1, "best-effort")
            ways = (1 << self._node.machine.ways) - 1
            self._originals[group, Knob.LLC_WAYS] = KnobValue(f"0={ways:x}")
            self._originals[group, Knob.MBA] = KnobValue("0=100")
        self._readings = {key: KnobReading(*key, value) for key, value in self._originals.items()}
        self._present = tuple(self._readings.values())

    @property
    def learned(self) -> tuple[LearnedIndicator, ...]:
        """What the planner has learned."""
        return self._planner.learned

    def step(self) -> float:
        """Take one tick or look; return the time in s after which the next one is due."""
        snapshot = self._snapshot()
        if self._looker is None or self._is_needed(self._looker, snapshot):
            self._tick(snapshot)
        return self._planner.period_ns / NS

    def _is_needed(self, looker: Looker, snapshot: Snapshot) -> bool:
        (figure,) = snapshot.services
        is_new = self._seen is None or (figure.age_ns or 0) < (self._seen.age_ns or 0)
        self._seen = figure
        event = TickReason.FIGURE if is_new else None
        return looker.look(snapshot, self._planner.period_ns, event) is not None

    def _tick(self, snapshot: Snapshot) -> None:
        self.ticks += 1
        if self._looker is not None:
            snapshot = replace(snapshot, left_out_ns=self._looker.left_out_ns)
        plan = self._planner.step(snapshot, self._outcomes)
        self._outcomes = tuple(self._execute(each) for each in plan.actions)
        if self._outcomes:
            self._present = tuple(self._readings.values())
        if self._looker is not None:
            quiet = self._planner.quiet(plan, self._planner.settle(self._outcomes))
            self._looker.end_tick(snapshot.time_ns, quiet)

    def _execute(self, action: Action) -> Outcome:
        self.writes += 1
        key = action.target, action.knob
        original = self._originals[key]
        held = None if action.value == original else original
        self._readings[key] = KnobReading(*key, action.value, held)
        knobs = self._node.knobs
        if action.knob is Knob.CPU_QUOTA:
            quota = parse_quota(action.value)
            limit = None
            if quota.quota_us is not None:
                limit = quota.quota_us / 1e6, quota.period_us / 1e6
            knobs.quotas[self._jobs[action.target]] = limit
        elif action.knob is Knob.SCHED_IDLE:
            knobs.idle[self._jobs[action.target]] = parse_idle(action.value) is None
        elif action.knob is Knob.LLC_WAYS:
            mask = parse_masks(action.value)[0]
            knobs.region = mask.bit_count() / self._node.machine.ways
        elif action.knob is Knob.MBA:
            knobs.percent = parse_bandwidth(action.value)[0]
        else:
            raise ValueError(f"no such knob on this node: {action.knob}")
        return Outcome(action=action, applied=action.value, original=held)

    def _snapshot(self) -> Snapshot:
        node, counters = self._node, self._node.counters
        time_ns = _BEGIN_NS + _ns(node.now_s)
        waits = np.array(counters.waits) * 1e9
        counters.waits.clear()
        places = np.searchsorted(_EDGES, waits, side="right")
        self._histogram += np.bincount(places, minlength=BUCKETS)
        self._waits += len(waits)
        if node.now_s - self._slow_s >= 1.0 - 1e-9:  # files are read once a second
            self._slow_s = node.now_s
            self._packets = counters.packets
            self._bytes = [int(each) for each in counters.bytes]
        service, overlap = counters.oncpu[0], counters.overlap_s
        ran = float(service) - self._last[0]
        ratio = (overlap - self._last[1]) / ran if ran > 0 else None
        self._last = float(service), overlap
        victim = self._workloads[0].cgroup
        blame = [
            Blame(victim, each.cgroup, True, _ns(wait))
            for each, wait in zip(self._workloads[1:], counters.blame, strict=True)
            if wait > 0
        ]
        if counters.unknown_s > 0:
            blame.append(Blame(victim, None, False, _ns(counters.unknown_s)))
        return Snapshot(
            time_ns=time_ns,
            age_ns=1_000_000,
            workloads=tuple(self._sample(n) for n in range(len(self._workloads))),
            blame=tuple(blame),
            system_oncpu_ns=_ns(counters.system_s),
            idle_ns=_ns(counters.idle_s),
            steal_ns=0,
            knobs=self._present,
            services=(self.figure(),),
            core_overlap_ratio=ratio if node.machine.counters else None,
            unknown_oncpu_ns=0,
        )

    def _sample(self, n: int) -> WorkloadSample:
        counters, hardware = self._node.counters, self._node.machine.counters
        is_service = n == 0
        return WorkloadSample(
            cgroup=self._workloads[n].cgroup,
            oncpu_ns=_ns(counters.oncpu[n]),
            wait_total_ns=_ns(counters.waited[n]),
            wait_inflicted_ns=_ns(counters.inflicted[n]),
            waits=self._waits if is_service else 0,
            runq_histogram=tuple(self._histogram.tolist()) if is_service else None,
            throttled_ns=_ns(counters.throttled[n]),
            cycles=int(counters.cycles[n]) if hardware else None,
            instructions=int(counters.instructions[n]) if hardware else None,
            llc_misses=int(counters.misses[n]) if hardware else None,
            llc_references=int(counters.accesses[n]) if hardware else None,
            tx_packets=self._packets // 2 if is_service else 0,
            rx_packets=self._packets // 2 if is_service else 0,
            tx_bytes=self._packets * 700 if is_service else 0,
            rx_bytes=self._packets * 150 if is_service else 0,
            memory_bandwidth_bytes=self._bytes[n] if self._resctrl else None,
            wait_host_ns=0,
        )

    def figure(self) -> ServiceReading:
        """Return the p99 of the last whole second, as a page of the service shows it."""
        now_s, fault = self._node.now_s, self._fault
        second = int(now_s + 1e-9)
        if not self._figures or self._figures[-1][0] < second:
            value = self._node.queue.p99(second - 1)
            self._figures.append((second, value))
        at_s, value = self._figures[-1]
        if now_s >= FAULT_S and fault is not Fault.NONE:
            if fault is Fault.DEAD:
                return ServiceReading("api", None, None)
            if fault is Fault.OLD:
                at_s, value = max(
                    (each for each in self._figures if each[0] <= second - OLD_S),
                    key=lambda each: each[0],
                )
            factors = {Fault.TIMES_TEN: 10.0, Fault.TENTH: 0.1}
            value = None if fault is Fault.MISSING or value is None else value
            value = None if value is None else value * factors.get(fault, 1.0)
        return ServiceReading("api", None if value is None else value * 1e9, _ns(now_s - at_s))


def _ns(seconds: float) -> int:
    return round(float(seconds) * NS)


def _workload(number: int, name: str, qos: QosClass, profile: str) -> Workload:
    folder = "/services" if qos is QosClass.LS else "/batch"
    return Workload(
        name=name,
        cgroup=CgroupId("v2", 100 + number),
        path=f"{folder}/{name}",
        qos=qos,
        service=name,
        profile=profile,
        image="api:1" if qos is QosClass.LS else "",
    )
