# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Settings for tests of the core, and a control loop closed over a simulated node."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from controller.config.sections.law import WHOLE_LAW
from controller.core.decision import Action, Outcome, Plan
from controller.core.knob_values import parse_quota
from controller.core.model import (
    Channel,
    EvictionAnswer,
    IndicatorName,
    Knob,
    Mode,
    Pause,
    Snapshot,
    Workload,
)
from controller.core.planner import Planner
from controller.core.settings import (
    HostFacts,
    IndicatorSpec,
    KnobLimits,
    LawSettings,
    Profile,
    SafeState,
    Settings,
)
from controller.core.tuning import DEFAULT_LIMITS, auto_gains
from controller.demo.simulated_node import SimulatedNode

# Every part of the law, as in a configuration file that names none.
LAW = WHOLE_LAW
TICK_NS = 200_000_000
SECOND_NS = 1_000_000_000
TICKS_PER_S = SECOND_NS // TICK_NS


def make_spec(
    sweet_point_ns: float = 2e6, filter_ns: int = 2 * SECOND_NS, dead_zone: float = 0.1
) -> IndicatorSpec:
    return IndicatorSpec(
        name=IndicatorName.RUNQ_P99,
        sweet_point=sweet_point_ns,
        tolerance=2.0,
        resolution=50e3,
        dead_zone=dead_zone,
        window_ns=SECOND_NS,
        filter_ns=filter_ns,
        min_samples=20,
        channel=Channel.CPU,
        gains=auto_gains(SECOND_NS, TICK_NS, filter_ns),
        is_time=True,
    )


def make_settings(
    spec: IndicatorSpec | None = None,
    sched_idle: bool = False,
    mode: Mode = Mode.ENFORCE,
    safe_state: SafeState = SafeState.STATIC,
    limits: KnobLimits = DEFAULT_LIMITS[Knob.CPU_QUOTA],
    cpus: int = 2,
    law: LawSettings = LAW,
) -> Settings:
    profile = Profile(
        name="default",
        indicators=(spec or make_spec(),),
        sched_idle=sched_idle,
        be_share_min=0.2,
        idle_oncpu_ratio=0.005,
        limits={Knob.CPU_QUOTA: limits},
    )
    return settings_with(profile, HostFacts(cpus=cpus), safe_state, mode, law)


def settings_with(
    profile: Profile, host: HostFacts, safe_state: SafeState, mode: Mode, law: LawSettings
) -> Settings:
    """Return settings of a host with the only profile *profile*."""
    return Settings(
        tick_ns=TICK_NS,
        host=host,
        profiles={profile.name: profile},
        reserve_cpus=0.1,
        safe_state=safe_state,
        stale_ticks=5,
        mode=mode,
        law=law,
    )


def with_sweet_point(settings: Settings, sweet_point_ns: float) -> Settings:
    profile = settings.profiles["default"]
    spec = replace(profile.indicators[0], sweet_point=sweet_point_ns)
    return replace(settings, profiles={"default": replace(profile, indicators=(spec,))})


class Node(Protocol):
    """A simulated node."""

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads of the node."""

    def snapshot(self, now_ns: int) -> Snapshot:
        """Advance to *now_ns* and read everything."""

    def execute(self, actions: Iterable[Action]) -> tuple[Outcome, ...]:
        """Write knobs."""


# Covariant, so that what holds for a kind of node holds for its subclasses.
NodeT = TypeVar("NodeT", bound=Node, covariant=True)


class ClosedLoop(Generic[NodeT]):
    """A simulated node that a real planner controls, tick by tick.

    ``pause`` and ``evictions`` are those of the next snapshots; ``latest`` is the last one.
    """

    def __init__(self, node: NodeT, settings: Settings | None = None) -> None:
        self.node = node
        self.settings = settings or make_settings()
        self.tick = 0
        self.pause: Pause | None = None
        self.evictions: tuple[EvictionAnswer, ...] = ()
        self.start()

    @property
    def now_ns(self) -> int:
        return self.tick * TICK_NS

    def start(self) -> None:
        """Start a planner that knows nothing of the ticks before."""
        self.planner = Planner(self.settings, self.node.workloads)
        self.outcomes: tuple[Outcome, ...] = ()
        self.latest: Snapshot | None = None

    def reconfigure(self, settings: Settings) -> None:
        self.settings = settings
        self.planner.reconfigure(settings)

    def step(self) -> Plan:
        self.latest = replace(
            self.node.snapshot(self.now_ns),
            pause=self.pause,
            evictions=self.evictions,
            left_out_ns=self.left_out_ns(),
        )
        plan = self.planner.step(self.latest, self.outcomes)
        enforcing = self.settings.mode is Mode.ENFORCE
        self.outcomes = self.node.execute(plan.actions) if enforcing else ()
        self.tick += 1
        return plan

    def left_out_ns(self) -> int:
        """Return how long ticks were left out before the next one."""
        return 0

    def run(self, seconds: float, each: Callable[[Plan], None] | None = None) -> list[Plan]:
        plans = []
        for _ in range(round(seconds * TICKS_PER_S)):
            plan = self.step()
            plans.append(plan)
            if each is not None:
                each(plan)
        return plans

    def granted_cpus(self: "ClosedLoop[SimulatedNode]") -> list[float | None]:
        return [
            parse_quota(self.node.value(workload, Knob.CPU_QUOTA)).cpus
            for workload in self.node.best_effort
        ]


def filtered(plans: Sequence[Plan]) -> list[float]:
    """Return the filtered deviations of the only loop, of the ticks that have one."""
    values = (plan.loops[0].filtered_deviation for plan in plans if plan.loops)
    return [value for value in values if value is not None]
