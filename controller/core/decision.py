# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Records of a decision: indicators, demands, actions and their outcomes, and the plan."""

from dataclasses import dataclass, field
from enum import StrEnum

from controller.core.model import CgroupId, Channel, IndicatorName, Knob, KnobValue, Target

__all__ = (
    "SLOW",
    "UNKNOWN",
    "Action",
    "Cause",
    "ChannelState",
    "Culprit",
    "Demand",
    "Eviction",
    "Failure",
    "Indicator",
    "IndicatorStatus",
    "LearnedReport",
    "LoopReport",
    "MemoryReport",
    "OffLoop",
    "Outcome",
    "Part",
    "PartKind",
    "Plan",
    "RungReport",
    "SlowBecause",
    "SlowService",
    "Verdict",
    "describe_slow",
)


class IndicatorStatus(StrEnum):
    """Status of an indicator.

    ``fresh``: it can be used. ``idle``: the service hardly ran, so nothing slows it down, and
    best-effort work is released. ``stale``: the source is dead; the safe state follows. ``lost``: a
    service works as before, but its own figure has no value any more; the demand is held.
    ``implausible``: its figure jumped while it does the same work in the same time; also held.
    """

    FRESH = "fresh"
    IDLE = "idle"
    STALE = "stale"
    LOST = "lost"
    IMPLAUSIBLE = "implausible"


# Nothing is known of what the indicator says now.
UNKNOWN = (IndicatorStatus.STALE, IndicatorStatus.LOST, IndicatorStatus.IMPLAUSIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indicator:
    """The value of one indicator of a service, which is that of its worst workload on this node.

    Unit of ``value``: ns for latencies and backlog, 1 for ratios, cycles per instruction, misses
    per 1,000 instructions, bytes/s for rates. ``samples`` is the number of events behind it: waits,
    thousands of instructions, packets. ``worst`` is the cgroup of the worst workload,
    ``sweet_point`` that of the load bin of that workload; ``None`` where the sweet point does not
    depend on the load. ``load`` is the load of that workload, in CPUs or, for ``cpu_per_packet``,
    in packets per second; 0 where the indicator has none.
    """

    service: str
    name: IndicatorName
    value: float | None
    samples: int
    status: IndicatorStatus
    worst: CgroupId | None = None
    sweet_point: float | None = None
    # Not compared, because recordings of earlier versions have no load.
    load: float = field(default=0.0, compare=False)


class ChannelState(StrEnum):
    """Why a channel squeezes best-effort work or does not.

    ``free``: no service exceeds its sweet point. ``squeeze``: one does, with evidence against
    best-effort work. ``self``: the service is at a limit of its own, of CPU or memory.
    ``steal``: the hypervisor takes the CPU. ``not-be``: there is no evidence against best-effort
    work. ``hold``: data is missing for a few ticks. ``safe``: data is missing for longer, the safe
    state holds. ``paused``: the service that suffers is paused.
    """

    FREE = "free"
    SQUEEZE = "squeeze"
    SELF = "self"
    STEAL = "steal"
    NOT_BE = "not-be"
    HOLD = "hold"
    SAFE = "safe"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How hard best-effort work is squeezed on a channel; 0 is free, 1 is the floor.

    ``wanted`` is the demand of the selected loop, ``applied`` the demand after limits and rate
    limiter; both in [0, 1]. ``service`` and ``indicator`` name the selected loop.
    """

    channel: Channel
    wanted: float
    applied: float
    state: ChannelState
    service: str | None = None
    indicator: IndicatorName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """State of one loop after a tick, for metrics, log and recording.

    ``is_time``: ``value`` and ``sweet_point`` are in ns. ``demand`` is in [0, 1]. Without a
    ``sweet_point``, which is the case while it is learned, the loop demands nothing. ``deviation``
    and ``filtered_deviation`` end at 2, where the scale of the loops ends; ``excess`` is the
    deviation without that limit (``None``: not known, or of a recording without it).
    """

    service: str
    indicator: IndicatorName
    channel: Channel
    status: IndicatorStatus
    value: float | None
    sweet_point: float | None
    deviation: float | None
    filtered_deviation: float | None
    demand: float
    selected: bool
    is_time: bool = False
    # Not compared, because recordings of earlier versions do not have it.
    excess: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedReport:
    """What is learned about one indicator of a service.

    ``sweet_point`` is in force at the present load, in ns with ``is_time``; with ``is_sure`` at
    least that of one load is learned. ``certainty`` (0 to 1) is that at the present load, from
    ``windows`` undisturbed windows at all loads. ``disturbance`` says why the last window did not
    count; empty: it did.
    """

    service: str
    indicator: IndicatorName
    sweet_point: float | None
    is_sure: bool
    certainty: float
    windows: int
    disturbance: str
    is_time: bool


@dataclass(frozen=True, slots=True)
class OffLoop:
    """A loop that is off, because its service has never had a source for its indicator."""

    service: str
    indicator: IndicatorName
    channel: Channel


@dataclass(frozen=True, slots=True)
class RungReport:
    """State of one rung of a channel's ladder after a tick.

    ``part`` is the position between free (0) and the floor (1), ``setting`` the same in words.
    ``usable``: the rung has a knob that can be moved now.
    """

    channel: Channel
    knob: Knob
    part: float
    usable: bool
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One write. ``previous`` is the value that the planner read, ``value`` the wanted one."""

    target: Target
    knob: Knob
    previous: KnobValue
    value: KnobValue
    reason: str


class Failure(StrEnum):
    """Expected failure of a write; any other failure is raised as an exception.

    ``gone``: the target does not exist any more, which is normal. ``refused``: the kernel returned
    an error.
    """

    GONE = "gone"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of an action; ``applied`` is the value read back after it.

    ``foreign`` is set when the knob had a value that another program wrote. Then nothing was
    written and that value is the new original; whether to write again is decided by the planner.
    ``original`` is as in ``KnobReading``, after the action. A refused knob is not written again
    before ``retry_ns`` (CLOCK_MONOTONIC; 0 without a refusal).
    """

    action: Action
    applied: KnobValue | None
    failure: Failure | None = None
    foreign: KnobValue | None = None
    errno: int | None = None
    message: str = ""
    original: KnobValue | None = None
    retry_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A change of a decision, in one sentence with the numbers that led to it."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """The decision to evict a best-effort workload; only in the plan of the tick that made it.

    ``blame`` is in the unit in which the channel attributes: CPUs of inflicted wait for cpu, bytes
    for memory, use of the resource per second for the others.
    """

    cgroup: CgroupId
    name: str
    channel: Channel
    service: str
    blame: float
    reason: str


@dataclass(frozen=True, slots=True)
class Culprit:
    """A best-effort workload and its part, 0 to 1, of what hurts a service."""

    cgroup: CgroupId
    share: float


class PartKind(StrEnum):
    """What kind of thing hurts a service.

    ``service``: another service. ``system``: a workload of class system. ``paused``: best-effort
    work that is paused, which best-effort's share does not contain. ``outside``: a cgroup
    outside all workloads, or the processes and kernel threads in no such cgroup. ``host``: the
    hypervisor, or a CPU that stood still or woke up late. ``self``: its own tasks, which wait for
    each other. ``unknown``: time that was not attributed.
    """

    BEST_EFFORT = "best-effort"
    SERVICE = "service"
    SYSTEM = "system"
    PAUSED = "paused"
    OUTSIDE = "outside"
    HOST = "host"
    SELF = "self"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Part:
    """Something that hurts a service, by name, and its part of that, 0 to 1.

    ``name`` is that of a workload or service, or the path of a cgroup; empty: the kind says all.
    """

    kind: PartKind
    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The evidence of one channel in a tick in which it squeezes or its service suffers.

    ``be_share`` is best-effort's part, 0 to 1 (``None``: not known). ``culprits`` are the workloads
    with the largest parts of it, the largest first. ``parts`` are the largest parts of all that
    hurts the service, whoever it is; those of best-effort work sum up to ``be_share`` on the cpu
    channel, unless the host takes a part.
    """

    channel: Channel
    service: str
    be_share: float | None
    culprits: tuple[Culprit, ...] = ()
    parts: tuple[Part, ...] = ()


class SlowBecause(StrEnum):
    """What makes a service slow.

    ``other-work``: workloads of class system, paused ones, and work outside all workloads.
    ``own-tasks``: they wait for each other; ``own-load``: so much as never while it was well.
    ``host``: its CPUs were taken, stood still or woke up late. ``disk``, ``link``: no workload has
    most of the traffic. ``elsewhere``: nothing on this node, as far as it is measured.
    """

    BEST_EFFORT = "best-effort"
    SERVICE = "another-service"
    OTHER_WORK = "other-work"
    OWN_QUOTA = "own-cpu-limit"
    OWN_MEMORY = "own-memory-limit"
    OWN_LOAD = "own-load"
    OWN_TASKS = "own-tasks"
    HOST = "host"
    DISK = "disk"
    LINK = "link"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"


# So begins the verdict on a slow service.
SLOW = "slow ("


def describe_slow(because: str, name: str, evidence: str) -> str:
    """Return a verdict in words, see ``SlowService``."""
    return f"{SLOW}{' '.join(filter(None, (because, name)))}): {evidence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowService:
    """Why a service that suffers is slow; of all channels together.

    ``name`` is the largest of that kind, a workload, a service or the path of a cgroup; empty: the
    kind says all. ``share`` is the part of that kind, 0 to 1 (``None``: not measured).
    ``evidence`` is in words, without names.
    """

    service: str
    because: SlowBecause
    name: str
    share: float | None
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """What the memory guard found in its last look, in bytes.

    ``room_bytes`` is what best-effort work may need: the capacity, less the margin, less the peak
    of ``others_bytes`` within 60 s. ``needed_bytes`` is what it needs now. ``limited`` is the
    number of cgroups with a limit, ``unlimited`` that of the best-effort workloads that have no
    cgroup of the memory controller.
    """

    capacity_bytes: int
    margin_bytes: int
    others_bytes: int
    room_bytes: int
    needed_bytes: int
    available_bytes: int
    limited: int
    unlimited: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All decisions of one tick. In observe mode the actions are reported and not written.

    ``causes`` explain the decisions and are not compared: recordings may be older than they.
    ``released``: everything is paused, so that no knob and no object of the agent's may stay, also
    where it is not the target of an action. ``memory``: what the memory guard found; ``None``: it
    is off. ``slow``: why services that suffer do, not compared either.
    """

    time_ns: int
    actions: tuple[Action, ...] = ()
    demands: tuple[Demand, ...] = ()
    loops: tuple[LoopReport, ...] = ()
    indicators: tuple[Indicator, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    quota_ceiling_cpus: float | None = None
    quota_granted_cpus: float | None = None
    safe: bool = False
    rungs: tuple[RungReport, ...] = ()
    eviction: Eviction | None = None
    off: tuple[OffLoop, ...] = ()
    causes: tuple[Cause, ...] = field(default=(), compare=False)
    learned: tuple[LearnedReport, ...] = ()
    released: bool = False
    memory: MemoryReport | None = None
    slow: tuple[SlowService, ...] = field(default=(), compare=False)
