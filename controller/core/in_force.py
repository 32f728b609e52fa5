# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The record of what is in force: the knobs that the agent holds, with value, begin and reason.

There is one such record after each tick. Log, history, pages, metrics and Events take from it what
limits best-effort work, so that they say the same as each other and as the kernel's files.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
import math
from types import MappingProxyType
from typing import NamedTuple

from controller.core.decision import Action, Demand
from controller.core.knob_values import cpus_of
from controller.core.model import (
    CgroupId,
    Channel,
    IndicatorName,
    Knob,
    KnobReading,
    KnobValue,
    Target,
    TargetKind,
    Workload,
)

__all__ = (
    "BACKSTOPS",
    "CHANNELS",
    "HeldKnob",
    "InForce",
    "KnobKey",
    "Limited",
    "concerns",
    "held_now",
    "in_force",
    "key_of",
)

# What identifies a knob.
KnobKey = tuple[CgroupId, Knob]

# Knobs that are always held and bite only where best-effort work would take what others need.
BACKSTOPS = frozenset({Knob.MEMORY_MAX, Knob.CPUSET})
# The channels that move a knob.
CHANNELS: Mapping[Knob, tuple[Channel, ...]] = {
    Knob.CPU_QUOTA: (Channel.CPU, Channel.CACHE),
    Knob.LLC_WAYS: (Channel.CACHE,),
    Knob.MBA: (Channel.CACHE,),
    Knob.CORE_COOKIE: (Channel.CACHE,),
    Knob.TC_CEILING: (Channel.NETWORK,),
    Knob.MEMORY_HIGH: (Channel.MEMORY,),
    Knob.MEMORY_MAX: (Channel.MEMORY,),
    Knob.IO_WEIGHT: (Channel.IO,),
    Knob.IO_MAX: (Channel.IO,),
}


class HeldKnob(NamedTuple):
    """A knob with a value of the agent's in force.

    ``value`` is as read back after the write, ``original`` what a restore puts back. ``since_ns``
    is when the agent began to hold the knob, ``changed_ns`` when ``value`` came into force; both
    CLOCK_MONOTONIC. ``reason`` is that of the last write. ``channel`` is the one that asked for it,
    ``service`` and ``indicator`` the loop that decided (``None``: no loop asked for this value).
    """

    target: Target
    knob: Knob
    value: KnobValue
    original: KnobValue
    since_ns: int
    changed_ns: int
    reason: str
    channel: Channel | None = None
    service: str | None = None
    indicator: IndicatorName | None = None

    @property
    def limits(self) -> bool:
        """Whether it takes an amount of a resource away, unlike sched-idle or a backstop.

        A backstop does where a loop moved it.
        """
        is_backstop = self.knob in BACKSTOPS and self.service is None
        return not is_backstop and self.knob is not Knob.SCHED_IDLE


class Limited(NamedTuple):
    """A best-effort workload that is limited.

    ``knobs`` limit it, the oldest first. ``cpus`` is the smallest quota of them, in CPUs (``None``:
    none is a quota).
    """

    workload: Workload
    knobs: tuple[HeldKnob, ...]
    cpus: float | None

    @property
    def since_ns(self) -> int:
        """When the first of its knobs came into force."""
        return min(each.since_ns for each in self.knobs)

    @property
    def main(self) -> HeldKnob:
        """The knob that was moved last, whose reason is that of the present limit."""
        return max(self.knobs, key=lambda each: each.changed_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """What the agent holds after a tick, as read back; in observe mode, what it would hold.

    ``time_ns`` is that of the snapshot. ``limited`` are the best-effort workloads with a limit, in
    the order of the workloads. ``cpus`` is what those with a quota may use together (``None``: no
    quota is in force), ``unlimited`` the number of best-effort workloads, without the paused ones,
    that have no quota. ``served`` are cgroups of services and system work, which hold knobs for
    their own sake.
    """

    time_ns: int = 0
    knobs: tuple[HeldKnob, ...] = ()
    limited: tuple[Limited, ...] = ()
    cpus: float | None = None
    unlimited: int = 0
    served: frozenset[CgroupId] = frozenset()

    @property
    def limits(self) -> tuple[HeldKnob, ...]:
        """The knobs that take an amount of a resource away from best-effort work."""
        return tuple(_limits(self.knobs, self.served))

    def of(self, cgroup: CgroupId) -> Limited | None:
        """Return what limits the workload of *cgroup*; ``None``: nothing does."""
        return next((each for each in self.limited if each.workload.cgroup == cgroup), None)

    def of_channel(self, channel: Channel) -> tuple[HeldKnob, ...]:
        """Return the limits that *channel* asked for."""
        return tuple(each for each in self.limits if each.channel is channel)


def key_of(each: Action | KnobReading | HeldKnob) -> KnobKey:
    """Return what identifies the knob of *each*."""
    return each.target.place, each.knob


def held_now(
    reading: KnobReading,
    known: HeldKnob | None,
    now_ns: int,
    action: Action | None,
    demand: Demand | None,
) -> HeldKnob:
    """Return the knob of *reading*, whose value is the agent's; *known* is as it was before.

    *action* brought the value into force, for *demand* (``None``: no loop asked for it). Without an
    action it was read.
    """
    original = reading.value if reading.original is None else reading.original
    held = known or HeldKnob(
        *(reading.target, reading.knob, reading.value, original),
        since_ns=now_ns,
        changed_ns=now_ns,
        reason="held before the agent started to plan",
    )
    if action is not None:
        channels = CHANNELS.get(action.knob, ())
        held = held._replace(
            changed_ns=now_ns,
            reason=action.reason,
            channel=channels[0] if len(channels) == 1 else None,
            service=None,
            indicator=None,
        )
    if demand is not None:
        held = held._replace(
            channel=demand.channel, service=demand.service, indicator=demand.indicator
        )
    if (held.value, held.original) != (reading.value, original):
        held = held._replace(value=reading.value, original=original, changed_ns=now_ns)
    return held


def concerns(target: Target, knob: Knob, workload: Workload) -> bool:
    """Return whether *knob* of *target* acts on the best-effort *workload*.

    Knobs of groups and links act on all best-effort work, the quota of a parent cgroup and the
    order of an ancestor on all workloads below it.
    """
    if target.kind is TargetKind.CORE_GROUP:
        return target.path == (workload.core_group or "best-effort")
    if target.kind is not TargetKind.CGROUP:
        return True
    if target.place == workload.cgroup:
        return True
    others = {
        Knob.SCHED_IDLE: (workload.idle_at,),
        Knob.CPU_QUOTA: (workload.quota_at,),
        Knob.CPUSET: (workload.quota_at, workload.container_of),
        Knob.MEMORY_MAX: (workload.memory_at, workload.own_memory_at),
    }.get(knob, ())
    return any(each is not None and target.place == each.place for each in others)


def in_force(
    time_ns: int,
    knobs: tuple[HeldKnob, ...],
    best_effort: Mapping[CgroupId, Workload],
    paused: Mapping[CgroupId, Workload] = MappingProxyType({}),
    served: frozenset[CgroupId] = frozenset(),
) -> InForce:
    """Return the record of *knobs*; *best_effort* are the workloads that may be limited now.

    The *paused* ones are limited until their knobs are restored. *served*: see ``InForce``.
    """
    limits = [*_limits(knobs, served)]
    if not limits:
        return InForce(time_ns=time_ns, knobs=knobs, unlimited=len(best_effort), served=served)
    limited = tuple(_limited(limits, {**best_effort, **paused} if paused else best_effort))
    with_quota = [each for each in limited if each.cpus is not None]
    return InForce(
        time_ns=time_ns,
        knobs=knobs,
        limited=limited,
        cpus=_sum(with_quota) if with_quota else None,
        unlimited=len(best_effort.keys() - {each.workload.cgroup for each in with_quota}),
        served=served,
    )


def _limits(knobs: Iterable[HeldKnob], served: frozenset[CgroupId]) -> Iterator[HeldKnob]:
    for each in knobs:
        is_cgroup = each.target.kind is TargetKind.CGROUP
        if each.limits and not (is_cgroup and each.target.place in served):
            yield each


def _limited(
    limits: Iterable[HeldKnob], best_effort: Mapping[CgroupId, Workload]
) -> Iterator[Limited]:
    everyones = []
    by_cgroup: dict[CgroupId, list[HeldKnob]] = {}
    for each in limits:
        if each.target.kind is TargetKind.CGROUP:
            by_cgroup.setdefault(each.target.place, []).append(each)
        else:
            everyones.append(each)
    for cgroup, workload in best_effort.items():
        others = (workload.quota_at, workload.memory_at, workload.own_memory_at)
        places = {cgroup: None} | {each.place: None for each in others if each is not None}
        found = [
            each
            for each in (*everyones, *(k for place in places for k in by_cgroup.get(place, ())))
            if concerns(each.target, each.knob, workload)
        ]
        if found:
            found.sort(key=lambda each: each.since_ns)
            quotas = [cpus for each in found if (cpus := _cpus(each)) is not None]
            yield Limited(workload, tuple(found), min(quotas, default=None))


def _cpus(held: HeldKnob) -> float | None:
    return cpus_of(held.value) if held.knob is Knob.CPU_QUOTA else None


def _sum(limited: Iterable[Limited]) -> float:
    """Return the CPUs that *limited* may use together: at most the quota of a common parent."""
    sums: dict[tuple[CgroupId, float], float] = defaultdict(float)
    for workload, knobs, cpus in limited:
        assert cpus is not None
        place, most = workload.cgroup, math.inf
        for each in knobs:
            parent = _cpus(each)
            if parent is not None and each.target.place != workload.cgroup:
                place, most = each.target.place, parent
        sums[place, most] += cpus
    return sum(min(most, cpus) for (_, most), cpus in sums.items())
