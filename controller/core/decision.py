# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a tick decides, and what became of it: from indicators over demands to a plan."""

from dataclasses import dataclass
from enum import StrEnum

from controller.core.model import CgroupId, Channel, IndicatorName, Knob, KnobValue, Target

__all__ = (
    "Action",
    "ChannelState",
    "Demand",
    "Eviction",
    "Failure",
    "Indicator",
    "IndicatorStatus",
    "LoopReport",
    "OffLoop",
    "Outcome",
    "Plan",
    "RungReport",
    "Verdict",
)


class IndicatorStatus(StrEnum):
    """``fresh``: usable. ``idle``: the service hardly ran, so nothing can hurt it; release.

    ``stale``: the source is dead; the safe state follows.
    """

    FRESH = "fresh"
    IDLE = "idle"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Indicator:
    """A service's value of one indicator, of its worst workload on this node.

    Unit of ``value``: ns for latencies and backlog, 1 for ratios, cycles per instruction, misses
    per 1,000 instructions, bytes/s for rates. ``samples`` is the number of events behind it: waits,
    thousands of instructions, packets. ``sweet_point`` is that of the load bin that the worst
    workload is in, ``None`` where the sweet point does not depend on the load.
    """

    service: str
    name: IndicatorName
    value: float | None
    samples: int
    status: IndicatorStatus
    worst: CgroupId | None = None
    sweet_point: float | None = None


class ChannelState(StrEnum):
    """Why a channel squeezes or does not."""

    FREE = "free"
    SQUEEZE = "squeeze"
    SELF = "self"
    STEAL = "steal"
    NOT_BE = "not-be"
    HOLD = "hold"
    SAFE = "safe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How hard best-effort work should be squeezed on a channel; 0 leaves it free.

    ``wanted`` is what the winning loop asks for, ``applied`` what was commanded after limits
    and slew; both in [0, 1]. ``service`` and ``indicator`` name the winner.
    """

    channel: Channel
    wanted: float
    applied: float
    state: ChannelState
    service: str | None = None
    indicator: IndicatorName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """One loop after a tick, for metrics, log and recording.

    ``is_time``: value and sweet point are ns.
    """

    service: str
    indicator: IndicatorName
    channel: Channel
    status: IndicatorStatus
    value: float | None
    sweet_point: float
    deviation: float | None
    filtered_deviation: float | None
    demand: float
    selected: bool
    is_time: bool = False


@dataclass(frozen=True, slots=True)
class OffLoop:
    """A loop that does nothing, because its service never had a source for its indicator."""

    service: str
    indicator: IndicatorName
    channel: Channel


@dataclass(frozen=True, slots=True)
class RungReport:
    """One rung of a channel's ladder after a tick.

    ``part`` is how far it is from free (0) to its stop (1), ``setting`` the same in words.
    ``usable``: something can be moved by it now.
    """

    channel: Channel
    knob: Knob
    part: float
    usable: bool
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One write. ``previous`` is what the planner read; ``value`` what it wants."""

    target: Target
    knob: Knob
    previous: KnobValue
    value: KnobValue
    reason: str


class Failure(StrEnum):
    """``gone``: the target left, which is normal. ``refused``: the kernel said no.

    A third kind, broken, is an exception.
    """

    GONE = "gone"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an action; ``applied`` is the value read back afterwards.

    ``foreign`` is set when somebody else's value was found in place of ours: nothing was
    written, and that value is the new original. Applying again is the planner's decision.
    """

    action: Action
    applied: KnobValue | None
    failure: Failure | None = None
    foreign: KnobValue | None = None
    errno: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One changed decision in one sentence, with the numbers that led to it."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """The decision that a best-effort workload has to go; told once, in the tick that made it.

    ``blame`` is in the unit in which the channel attributes: CPUs of inflicted wait for cpu, the
    use of the resource per second, or bytes of memory, for the others.
    """

    cgroup: CgroupId
    name: str
    channel: Channel
    service: str
    blame: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one tick decided. In observe mode the actions are reported and not written."""

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
